// Planning one elementwise function: contiguous operands and rows go straight to a loop, the rest
// becomes a tile program of one instruction.
#include "base/table.h"

#include <algorithm>
#include <numeric>

#include "elementwise/fused.h"
#include "base/rows.h"
#include "base/spans.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {
namespace {

enum { FLOATS, INTEGERS, NUMBERS, INTEGRAL, ALL, SAME, BOOL };
#define UNARY(name, dtypes, result, expression) {1, result == BOOL},
#define BINARY(name, dtypes, result, expression) {2, result == BOOL},
#define TERNARY(name, dtypes, result, expression) {3, result == BOOL},
constexpr struct {
  int8_t arity;
  bool gives_bool;
} kSignatures[kFunctions] = {
#include "functions.def"
};
#undef UNARY
#undef BINARY
#undef TERNARY

struct ContiguousState {
  Loop loop;
  int64_t n;
  int64_t items[4];  // bytes per element of out and inputs; 0: one element
  int32_t operands;
  Stores stores;
};

void run_part(const ContiguousState& state, void* const* buffers, int64_t first, int64_t end) {
  char* operands[4];
  for (int i = 0; i < state.operands; ++i)
    operands[i] = static_cast<char*>(buffers[i]) + first * state.items[i];
  const int inputs = state.operands - 1;
  switch (state.stores) {
    case Stores::kPlain:
      return state.loop.run(operands[0], reinterpret_cast<void* const*>(operands + 1), end - first);
    case Stores::kFetched:
      return run_fetching(state.loop.run, state.items, inputs, operands, end - first);
    case Stores::kStreamed:
      run_streaming(state.loop, state.items, state.items + 1, inputs, operands, end - first);
      finish_streaming();
  }
}

int64_t bytes_moved(const ContiguousState& state) {
  return state.n * std::accumulate(state.items, state.items + state.operands, int64_t{0});
}

int64_t run_contiguous(const Plan* plan, void* const* buffers, void*) {
  const auto& state = *reinterpret_cast<const ContiguousState*>(plan->state);
  if (state.n < kSerial) {
    state.loop.run(buffers[0], buffers + 1, state.n);
    return -1;
  }
  run_pieces((state.n + 63) / 64, bytes_moved(state), [&](int64_t line, int64_t end_line) {
    run_part(state, buffers, line * 64, std::min(end_line * 64, state.n));
  });
  return -1;
}

// The inputs that are one element, as bits.
uint32_t single_elements(const Operand& out, const Operand* inputs, int32_t n) {
  uint32_t ones = (1u << n) - 1;
  for (int i = 0; i < n; ++i)
    for (int d = 0; d < out.ndim; ++d)
      if (out.shape[d] != 1 && inputs[i].strides[d] != 0) ones &= ~(1u << i);
  return ones;
}

// The number of elements if all operands but `uniform` ones lie densely in the same order,
// otherwise -1.
int64_t contiguous_size(uint32_t uniform, const Operand& out, const Operand* inputs, int32_t n) {
  uint32_t left = 0;  // dims that matter
  for (int d = 0; d < out.ndim; ++d) {
    if (out.shape[d] == 0) return 0;
    if (out.shape[d] == 1) continue;
    left |= 1u << d;
    for (int i = 0; i < n; ++i)
      if ((uniform >> i & 1) == 0 && inputs[i].strides[d] != out.strides[d]) return -1;
  }
  int64_t size = 1;
  while (left != 0) {
    const uint32_t before = left;
    for (int d = out.ndim - 1; d >= 0; --d) {
      if ((left >> d & 1) == 0 || out.strides[d] != size) continue;
      size *= out.shape[d];
      left &= ~(1u << d);
    }
    if (left == before) return -1;
  }
  return size;
}

// AVX-512 computes most functions of float32 faster than results reach memory.
Work work_of(int32_t function, [[maybe_unused]] DType type) {
  if (!has_many_instructions(function)) return Work::kLittle;
#if defined(__AVX512F__)
  if (type == kFloat32) return Work::kSome;
#endif
  return Work::kMuch;
}

}  // namespace

Loops loops_of(int32_t function, DType type, Work work) {
  if (type > kFloat64) return {loop_of(function, type), nullptr, nullptr, work};
  const UniformLoops& numbers = kUniformLoops[function][type];
  const Contiguous past = type == kFloat32 ? kPastLoops[function] : nullptr;
  return {loop_of(function, type), numbers.first, numbers.last, work, past};
}

int32_t arity_of(int32_t function) { return kSignatures[function].arity; }
bool gives_bool(int32_t function) { return kSignatures[function].gives_bool; }

Contiguous loop_of(int32_t function, DType dtype) {
  Contiguous loop =
      arity_of(function) == 1 ? kUnaryLoops[function][dtype] : kBinaryLoops[function][dtype];
  return loop;
}

Contiguous contiguous(int32_t function, DType input, DType out) {
  if (out != (gives_bool(function) ? kBool : input)) return nullptr;
  return loop_of(function, input);
}

// Functions that compute a lot have time to read the lines that they overwrite, so ordinary stores
// cost them nothing, and stores past the caches can slow them down. With AVX-512 they are still
// faster past the caches, by loops that store there themselves, most of all while other programs
// use the third cache.
// Functions that compute little gain if the lines of results are fetched ahead, unless these stay
// in the second caches.
Stores stores_of(Work work, int64_t size, DType dtype, int64_t moved) {
  if (work == Work::kMuch) return Stores::kPlain;
  // Narrow elements count as float32, because the other operands mostly are float32 and fill the
  // cache. But some third caches keep everything that fits, and are then much faster than memory
  // (see kept_bytes).
  const int64_t item = kItemSize[dtype], bytes = size * std::max<int64_t>(item, 4);
  const bool stays = moved <= kept_bytes();
  if (bytes >= elementwise_streaming_bytes() && !stays) return Stores::kStreamed;
  const bool fetched =
      work == Work::kLittle && size * item >= second_caches_bytes() && fetches_results();
  return fetched ? Stores::kFetched : Stores::kPlain;
}

bool plan_contiguous(Plan* plan, const Loops& loops, const Operand& out, const Operand* inputs,
                     int32_t n) {
  const Loop loop = choose_loop(loops, n, single_elements(out, inputs, n));
  int64_t size = contiguous_size(loop.uniform, out, inputs, n);
  if (size < 0) return false;
  auto* state = reinterpret_cast<ContiguousState*>(plan->state);
  plan->run = run_contiguous;
  plan->workspace = 0;
  *state = {loop, size, {kItemSize[out.dtype]}, n + 1, Stores::kPlain};
  for (int i = 0; i < n; ++i)
    state->items[i + 1] = loop.uniform >> i & 1 ? 0 : kItemSize[inputs[i].dtype];
  state->stores = stores_of(loops.work, size, out.dtype, bytes_moved(*state));
  return true;
}

const char* plan_elementwise(Plan* plan, int32_t function, const Operand& out,
                             const Operand* inputs, int32_t n) {
  if (n != arity_of(function)) return "wrong number of inputs";
  DType type = inputs[n - 1].dtype;  // the first of `where` is its condition
  if (contiguous(function, type, out.dtype)) {
    const Loops loops = loops_of(function, type, work_of(function, type));
    if (plan_contiguous(plan, loops, out, inputs, n)) return nullptr;
    if (plan_rows(plan, loops, out, inputs, n)) return nullptr;
  }
  Instruction instruction = {function, {0, 1, 2}};
  return plan_fused(plan, {&instruction, 1, nullptr, 0, nullptr}, &out, 1, inputs, n);
}

}  // namespace needle::NEEDLE_ISA
