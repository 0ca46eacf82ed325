// Softmax along an axis whose neighbours lie far apart in the results.
#pragma once
#include "isa/isa.h"

namespace needle::NEEDLE_ISA {

// Is `out` (or for kLogSumExp `x`) laid out so that columns are to be computed, not rows?
bool has_columns(int32_t kind, const Operand& out, const Operand& x);

// As plan_softmax and, if there is g, plan_softmax_grad (kernels.h).
const char* plan_softmax_columns(Plan* plan, int32_t kind, const Operand& out, const Operand& x,
                                 const Operand* g);

}  // namespace needle::NEEDLE_ISA
