// The tile interpreter's loop. Each thread has an interpreter, and its tiles, on its stack.
#pragma once
#include <algorithm>
#include <cstring>

#include "base/stream.h"
#include "elementwise/ahead.h"
#include "elementwise/fused.h"

namespace needle::NEEDLE_ISA {

constexpr int kSlots = 40, kSquareSlots = 4;
constexpr int kPad = 64;  // keeps tiles off the same cache sets
constexpr int64_t kTilesBytes = kSlots * (kLeastTileBytes + kPad);
constexpr int64_t kNearBytes = 32 << 10;  // of all tiles, if there are so few: the first cache
static_assert(kTilesBytes >= kSquareSlots * (kMostTileBytes + kPad));
static_assert(kTilesBytes >= kNearBytes / kLeastTileBytes * (kLeastTileBytes + kPad));
constexpr int kRegisters = kMaxOperands + kMaxNumbers + kMaxFused;
static_assert(kRegisters <= INT8_MAX);
constexpr int64_t kPiece = 512;  // elements computed at a time beside an operand that is repeated

inline bool is_cast(int function) { return function >= kFunctions; }
inline int arguments_of(int function) { return is_cast(function) ? 1 : arity_of(function); }
inline bool is_half(int dtype) { return dtype == kFloat16 || dtype == kBFloat16; }
inline DType held_type(int dtype) { return register_type(DType(dtype)); }

inline void convert_all(DType from, DType to, void* out, const void* x, int64_t n) {
  conversion(from, to)(out, &x, n);
}

// One thread's run of a program.
class Interpreter {
 public:
  // scratch: which output is memory of this thread, that it reads again (compute); -1: none.
  Interpreter(const TileProgram& program, void* const* buffers, int scratch = -1)
      : program_(program), buffers_(buffers), scratch_(scratch) {
    for (int i = 0; i < program.n_inputs; ++i) {
      filled_from_[i] = nullptr;
      registers_[i] = tile(operand(program.n_outs + i).slot);
    }
    for (int k = 0; k < program.n_numbers; ++k) fill_number(k);
    std::fill_n(output_of_, program.length, int8_t{-1});
    for (int i = 0; i < program.length; ++i)
      registers_[program.first_result() + i] = tile(program.slot[i]);
    for (int i = 0; i < program.n_outs; ++i) {
      const int step = program.results[i] - program.first_result();
      if (program.length > 0) output_of_[step] = static_cast<int8_t>(i);
      is_direct_[i] = program.length > 0 && operand(i).dense &&
                      operand(i).dtype == operand(i).type && !is_read_after(i, step);
    }
  }

  // Runs over a range of blocks.
  void run(int64_t first, int64_t end) {
    position_.seek(program_.walk, first);
    for (int64_t block = first; block < end; ++block) {
      run_block();
      position_.advance(program_.walk);
    }
    if (program_.streams) finish_streaming();
  }

  // Runs over n elements from one on, in the order of the walk. They lie in the scratch output from
  // its element `to` on.
  void compute(int64_t first, int64_t n, int64_t to) {
    for (int64_t done = 0; done < n; done += count()) {
      position_.seek_element(program_.walk, first + done, n - done);
      position_.offsets[scratch_] = to + done;
      run_block();
    }
    if (program_.streams) finish_streaming();
  }

 private:
  void run_block() {
    for (int i = 0; i < program_.n_inputs; ++i) fetch(i);
    place_outputs();
    if (program_.far) look_ahead();
    for (int i = 0; i < program_.length; ++i) execute(i);
    for (int i = 0; i < program_.n_outs; ++i) store(i);
  }

  const Role& operand(int i) const { return program_.operands[i]; }
  void* tile(int slot) { return tiles_ + slot * program_.slot_bytes; }
  int64_t count() const { return position_.rows * position_.cols; }
  char* address(int i) const {
    return static_cast<char*>(buffers_[i]) + position_.offsets[i] * kItemSize[operand(i).dtype];
  }

  // Whether the memory of an output is an input's that later instructions read.
  bool is_read_after(int out, int step) const {
    for (int i = 0; i < program_.n_inputs; ++i) {
      const int at = program_.n_outs + i;
      if (buffers_[at] == buffers_[out] && operand(at).last > step) return true;
    }
    return false;
  }

  void fill_number(int k) {
    void* to = registers_[program_.n_inputs + k] = tile(program_.number_slot[k]);
    const int64_t n = std::min(kPiece, program_.walk.rows * program_.walk.cols);
    load_block(to, &program_.numbers[k], 1, n, 0, 0, kItemSize[program_.number_type[k]]);
  }

  void fetch(int input) {
    int i = program_.n_outs + input;
    const Role& from = operand(i);
    const void* source = address(i);
    const int64_t n = from.repeated ? std::min(kPiece, count()) : count();
    if (!from.dense) {
      if (filled_from_[input] == source && filled_count_[input] == n) return;
      filled_from_[input] = source;
      filled_count_[input] = n;
      void* target = from.dtype == from.type ? tile(from.slot) : raw_;
      load_block(target, source, from.repeated ? 1 : position_.rows,
                 from.repeated ? n : position_.cols, program_.walk.dim(1)[1 + i],
                 program_.walk.dim(0)[1 + i], kItemSize[from.dtype]);
      source = target;
    }
    if (from.dtype == from.type) {
      registers_[input] = const_cast<void*>(source);
    } else {
      convert_all(DType(from.dtype), DType(from.type), tile(from.slot), source, n);
    }
  }

  // Results that lie dense in memory are computed there.
  void place_outputs() {
    for (int i = 0; i < program_.n_outs; ++i)
      if (is_direct_[i] && !streams(i)) registers_[program_.results[i]] = address(i);
  }

  void look_ahead() {
    ahead_.begin(count(), program_.length);
    for (int i = program_.n_outs; i < program_.n_outs + program_.n_inputs; ++i)
      if (operand(i).dense) ahead_.add(address(i), kItemSize[operand(i).dtype]);
  }

  // Runs one instruction. In pieces if the result goes around the caches, or for an argument that
  // is repeated and of which the loop does not take one element; the tile of a result is left whole
  // for those who read it.
  void execute(int i) {
    const Step& step = program_.steps[i];
    const int out = output_of_[i], arity = arguments_of(step.function);
    const int64_t item = kItemSize[held_type(step.out)], n = count();
    const bool past = out >= 0 && streams_now(out);
    const void* inputs[3];
    int64_t advance[3];  // bytes per element
    int64_t piece = past ? kStreamTileBytes / item : program_.far ? Ahead::kPiece : n;
    const Loop loop = loop_for(step, arity);
    for (int k = 0; k < arity; ++k) {
      const bool repeated = is_repeated(step.args[k]);
      if (repeated && !(loop.uniform >> k & 1)) piece = std::min(piece, kPiece);
      inputs[k] = registers_[step.args[k]];
      advance[k] = repeated ? 0 : step.function == k_where && k == 0 ? 1 : kItemSize[step.type];
    }
    char* result = static_cast<char*>(registers_[program_.first_result() + i]);
    for (int64_t first = 0; first < n; first += piece) {
      const int64_t length = std::min(piece, n - first);
      void* to = result + first * item;
      if (is_half(step.out)) {
        if (!is_cast(step.function)) {
          loop.run(to, inputs, length);
          convert_all(kFloat32, DType(step.out), raw_, to, length);
        } else {
          loop.run(raw_, inputs, length);
        }
        convert_all(DType(step.out), kFloat32, to, raw_, length);
      } else {
        loop.run(to, inputs, length);
      }
      if (program_.far) ahead_.fetch();
      if (past) stream(address(out) + first * item, to, length * item);
      for (int k = 0; k < arity; ++k)
        inputs[k] = static_cast<const char*>(inputs[k]) + length * advance[k];
    }
  }

  bool is_repeated(int from) const {
    if (from >= program_.n_inputs) return from < program_.first_result();
    return operand(program_.n_outs + from).repeated;
  }

  Loop loop_for(const Step& step, int arity) const {
    if (is_cast(step.function))
      return {conversion(DType(step.type), DType(step.function - kFunctions)), 0};
    uint32_t ones = 0;
    for (int k = 0; k < arity; ++k) ones |= uint32_t{is_repeated(step.args[k])} << k;
    return choose_loop(loops_of(step.function, DType(step.type)), arity, ones);
  }

  // Whether an output goes around the caches.
  bool streams(int out) const { return program_.streams && out != scratch_; }
  bool streams_now(int out) const {
    return streams(out) && is_direct_[out] && is_streamable(address(out));
  }

  void store(int i) {
    const Role& to = operand(i);
    const void* source = registers_[program_.results[i]];
    char* target = address(i);
    if (source == target || streams_now(i)) return;
    if (to.dtype != to.type) {
      void* converted = to.dense && !streams(i) ? target : raw_;
      convert_all(DType(to.type), DType(to.dtype), converted, source, count());
      source = converted;
      if (source == target) return;
    }
    const int64_t bytes = count() * kItemSize[to.dtype];
    if (streams(i) && to.dense && is_streamable(target)) return stream(target, source, bytes);
    if (to.dense) {
      std::memcpy(target, source, static_cast<size_t>(bytes));
      return;
    }
    const int64_t item = kItemSize[to.dtype], stride = program_.walk.dim(1)[1 + i] * item;
    if (streams(i) && streams_rows(i, stride)) {
      stream_rows(target, static_cast<const char*>(source), stride, position_.cols * item);
    } else {
      store_block(target, source, position_.rows, position_.cols, program_.walk.dim(1)[1 + i],
                  program_.walk.dim(0)[1 + i], item);
    }
  }

  // Whether all rows of the block begin with a line of the caches.
  bool streams_rows(int i, int64_t stride) const {
    return program_.walk.dim(0)[1 + i] == 1 && stride % kStreamAlignment == 0 &&
           is_streamable(address(i));
  }

  // Stores the rows of a block, which are parts of the result's rows, past the caches.
  void stream_rows(char* target, const char* source, int64_t stride, int64_t bytes) const {
    for (int64_t row = 0; row < position_.rows; ++row)
      stream(target + row * stride, source + row * bytes, bytes);
  }

  const TileProgram& program_;
  void* const* buffers_;
  int scratch_;
  Position position_;
  Ahead ahead_;
  void* registers_[kRegisters];
  const void* filled_from_[kMaxOperands];  // a broadcast tile is filled once, not per block
  int64_t filled_count_[kMaxOperands];
  int8_t output_of_[kMaxFused];   // the output that each instruction gives; -1: none
  bool is_direct_[kMaxOperands];  // the output may be written before the last instruction
  alignas(64) char raw_[kMostTileBytes];
  alignas(64) char tiles_[kTilesBytes];
};

}  // namespace needle::NEEDLE_ISA
