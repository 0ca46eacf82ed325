// Fetches what a program reads next while it computes. By itself the processor runs ahead of what
// is being read, but not while functions of it are computed, which takes longer in many programs.
#pragma once
#include "base/stream.h"
#include "elementwise/fused.h"

namespace needle::NEEDLE_ISA {

constexpr int64_t kFarTileBytes = 4096;  // small, so that few blocks begin unfetched

// Whether a program of several instructions walks straight through more memory than the second
// caches hold, and gains by this as optimizers do.
inline bool reads_far(const TileProgram& program) {
  if (program.length < 2 || !fetches_updates()) return false;
  for (int d = 1; d < program.walk.ndim; ++d)
    if (program.walk.dim(d)[0] != 1) return false;
  int64_t item = 0;
  for (int i = 0; i < program.n_outs + program.n_inputs; ++i) {
    const Role& operand = program.operands[i];
    if (!operand.dense && !operand.repeated) return false;
    item += kItemSize[operand.dtype];
  }
  return program.walk.dim(0)[0] * item > second_caches_bytes();
}

class Ahead {
 public:
  static constexpr int64_t kPiece = 256;  // elements computed between two calls of fetch

  // A block begins: so many elements, `length` times computed.
  void begin(int64_t count, int length) {
    n_ = 0;
    at_ = 0;
    count_ = count;
    step_ = (kPiece + length - 1) / length;
  }
  // Of an operand that lies dense from here on.
  void add(const void* block, int64_t item) {
    next_[n_] = static_cast<const char*>(block) + count_ * item;
    items_[n_++] = item;
  }
  void fetch() {
    const int64_t end = at_ + step_ < count_ ? at_ + step_ : count_;
    for (int i = 0; i < n_; ++i)
      for (int64_t byte = at_ * items_[i]; byte < end * items_[i]; byte += kLine)
        __builtin_prefetch(next_[i] + byte);
    at_ = end;
  }

 private:
  static constexpr int64_t kLine = 64;
  int n_ = 0;
  int64_t at_, count_, step_;  // elements
  const char* next_[kMaxOperands];
  int64_t items_[kMaxOperands];
};

}  // namespace needle::NEEDLE_ISA
