// The kernels that work element by element, as the table lists them.
#pragma once
#include "isa/isa.h"

namespace needle::NEEDLE_ISA {

void set_threads(int32_t n);
void set_alone(int32_t alone);
void set_streaming_bytes(int64_t bytes);
void count_as_zen(int32_t generation);

Contiguous contiguous(int32_t function, DType input, DType out);
const char* plan_elementwise(Plan* plan, int32_t function, const Operand& out,
                             const Operand* inputs, int32_t n);
const char* plan_fused(Plan* plan, const FusedProgram& program, const Operand* outs, int32_t n_outs,
                       const Operand* inputs, int32_t n_inputs);
const char* plan_copy(Plan* plan, const Operand& out, const Operand& x);
const char* plan_fill(Plan* plan, const Operand& out, double value);
const char* plan_ramp(Plan* plan, const Operand& out, bool is_whole, double start, double step);
const char* plan_random_bits(Plan* plan, const Operand& out, uint64_t offset);
const char* plan_draw(Plan* plan, int32_t kind, const Operand& out, int64_t low, uint32_t last);

}  // namespace needle::NEEDLE_ISA
