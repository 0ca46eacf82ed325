// Copies, conversions and fills: one loop, or tile programs without instructions.
#include <algorithm>
#include <cstring>

#include "base/table.h"
#include "elementwise/fused.h"
#include "isa/lanes.h"
#include "base/rows.h"
#include "base/spans.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {
namespace {

// One value, as often as a line of the caches holds it.
struct DenseFill {
  int64_t bytes;
  bool streams;
  alignas(8) char line[kStreamTileBytes];
};

void fill_bytes(const DenseFill& s, char* out, int64_t bytes) {
  const auto line = load(s.line);
  int64_t i = 0;
  for (; i + kVectorBytes <= bytes; i += kVectorBytes) store(out + i, line);
  std::memcpy(out + i, s.line, bytes - i);
}

void stream_bytes(const DenseFill& s, char* out, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kStreamTileBytes)
    stream(out + i, s.line, least(kStreamTileBytes, bytes - i));
  finish_streaming();
}

int64_t run_dense_fill(const Plan* plan, void* const* buffers, void*) {
  constexpr int64_t kLine = 64, kSerialBytes = 4 * kSerial;
  const DenseFill& s = state_of<DenseFill>(plan);
  char* out = as<char>(buffers[0]);
  const auto piece = [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kLine, bytes = least(end * kLine, s.bytes) - first;
    s.streams&& is_streamable(out) ? stream_bytes(s, out + first, bytes)
                                   : fill_bytes(s, out + first, bytes);
  };
  const int64_t lines = parts(s.bytes, kLine);
  if (s.bytes < kSerialBytes)
    piece(0, lines);
  else
    run_pieces(lines, s.bytes, piece);
  return -1;
}

const char* plan_dense_fill(Plan* plan, const Operand& out, double value) {
  DenseFill& s = state_of<DenseFill>(plan);
  const int64_t item = kItemSize[out.dtype];
  const void* source = &value;
  conversion(kFloat64, out.dtype)(s.line, &source, 1);
  for (int64_t i = item; i < kStreamTileBytes; ++i) s.line[i] = s.line[i - item];
  s.bytes = element_count(out) * item;
  s.streams = s.bytes >= elementwise_streaming_bytes();
  plan->workspace = 0;
  plan->run = run_dense_fill;
  return nullptr;
}

int64_t run_fill(const Plan* plan, void* const* buffers, void* workspace) {
  const auto& program = *reinterpret_cast<const TileProgram*>(plan->state);
  void* with_value[] = {buffers[0], const_cast<int64_t*>(&program.fill)};
  return program.run(plan, with_value, workspace);
}

}  // namespace

const char* plan_copy(Plan* plan, const Operand& out, const Operand& x) {
  const Loops loops = {conversion(x.dtype, out.dtype), nullptr, nullptr, Work::kLittle};
  if (plan_contiguous(plan, loops, out, &x, 1) || plan_rows(plan, loops, out, &x, 1))
    return nullptr;
  return plan_program(plan, {}, &out, 1, &x, 1, &out.dtype);
}

const char* plan_fill(Plan* plan, const Operand& out, double value) {
  if (is_dense(out)) return plan_dense_fill(plan, out, value);
  static const int64_t kNoStrides[kMaxDims] = {};
  Operand constant = {out.dtype, out.ndim, out.shape, kNoStrides};
  const char* problem = plan_program(plan, {}, &out, 1, &constant, 1, &out.dtype);
  if (problem) return problem;
  auto* program = reinterpret_cast<TileProgram*>(plan->state);
  const void* source = &value;
  conversion(kFloat64, out.dtype)(&program->fill, &source, 1);
  program->run = plan->run;
  plan->run = run_fill;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
