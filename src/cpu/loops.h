// The contiguous loops: one per elementwise function and dtype, made from functions.def, and one
// per pair of dtypes that converts.
#pragma once
#include "isa.h"

namespace needle::NEEDLE_ISA {

// Null where functions.def has no such row, and for float16 and bfloat16, which are computed in
// float32 tiles (only `where` moves them as they are).
Contiguous loop_of(int32_t function, DType dtype);
int32_t arity_of(int32_t function);
bool gives_bool(int32_t function);

// Converts with NumPy's meaning; floats that an integer cannot hold saturate, NaN gives 0.
Contiguous conversion(DType from, DType to);

// Plans one call of a loop; false if the operands are not all dense in C order.
bool plan_contiguous(Plan* plan, Contiguous loop, const Operand& out, const Operand* inputs,
                     int32_t n);

// The dtype in which elements are computed.
inline DType register_type(DType dtype) {
  return dtype == kFloat16 || dtype == kBFloat16 ? kFloat32 : dtype;
}

using LoopRow = Contiguous[kDTypes];
extern const LoopRow kUnaryLoops[kFunctions];   // rows of other arity are null
extern const LoopRow kBinaryLoops[kFunctions];  // binary and ternary

}  // namespace needle::NEEDLE_ISA
