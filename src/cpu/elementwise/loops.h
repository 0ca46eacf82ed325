// The contiguous loops: one per elementwise function and dtype, made from functions.def, and one
// per pair of dtypes that converts.
#pragma once
#include "isa/isa.h"

namespace needle::NEEDLE_ISA {

// Null for functions that functions.def does not define, for float16 except functions of its sign,
// and for bfloat16 functions of many instructions, which are computed in float32 tiles.
Contiguous loop_of(int32_t function, DType dtype);
int32_t arity_of(int32_t function);
bool gives_bool(int32_t function);

// Converts with NumPy's meaning; floats that an integer cannot hold saturate, NaN gives 0.
Contiguous conversion(DType from, DType to);

// Of unary functions of many instructions: a loop over float32 that stores past the caches by
// itself, where AVX-512 computes them faster than results reach memory. The result is aligned for
// that (stream.h).
extern const Contiguous kPastLoops[kFunctions];

// How much is computed for an element.
enum class Work : int8_t { kLittle, kSome, kMuch };

// So many that a loop waits for them, not for memory.
constexpr bool has_many_instructions(int32_t function) {
#if !defined(__AVX2__)  // they do not become vector code
  if (function == k_bitwise_left_shift || function == k_bitwise_right_shift) return true;
  if (function == k_logical_and || function == k_logical_or) return true;
#endif
  if (function >= k_exp && function <= k_gelu_tanh) return function != k_relu && function != k_exp2;
  return function == k_floor_divide || function == k_remainder || function == k_power ||
         function == k_atan2 || function == k_logaddexp || function == k_elu ||
         function == k_silu_grad || function == k_gelu_grad || function == k_gelu_tanh_grad;
}

// The loops of a function for one dtype. Beside numbers there are others, which take one element of
// the first operand, or of all but the first (null: there is none).
struct Loops {
  Contiguous run, first, last;
  Work work;
  Contiguous past = nullptr;  // of kPastLoops, where there is one
};
Loops loops_of(int32_t function, DType type, Work work = Work::kLittle);

// How a result of `size` elements gets into memory; with its inputs it has `moved` bytes.
enum class Stores : int8_t {
  kPlain,
  kFetched,   // lines are fetched before they are overwritten
  kStreamed,  // past the caches
};
Stores stores_of(Work work, int64_t size, DType dtype, int64_t moved);

// The one of them where the inputs whose bit is set in `ones` are one element, and those of which
// it takes one.
struct Loop {
  Contiguous run;
  uint32_t uniform;
  Contiguous past = nullptr;  // the same, but stores past the caches by itself
};
inline Loop choose_loop(const Loops& loops, int32_t n, uint32_t ones) {
  const uint32_t all_but_first = (1u << n) - 2;
  if (ones == 1 && loops.first) return {loops.first, ones};
  if (ones == all_but_first && loops.last) return {loops.last, ones};
  return {loops.run, 0, loops.past};
}

// Plans one call of a loop; false if the operands are not all dense in the same order.
bool plan_contiguous(Plan* plan, const Loops& loops, const Operand& out, const Operand* inputs,
                     int32_t n);

// The dtype in which elements are computed.
inline DType register_type(DType dtype) {
  return dtype == kFloat16 || dtype == kBFloat16 ? kFloat32 : dtype;
}

using LoopRow = Contiguous[kDTypes];
struct UniformLoops {
  Contiguous first, last;  // the first operand is one element; all but the first are
};
using UniformRow = UniformLoops[2];  // float32, float64
extern const UniformRow kUniformLoops[kFunctions];
extern const LoopRow kUnaryLoops[kFunctions];   // rows of other arity are null
extern const LoopRow kBinaryLoops[kFunctions];  // binary and ternary

}  // namespace needle::NEEDLE_ISA
