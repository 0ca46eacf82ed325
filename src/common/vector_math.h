// The functions behind the rows of functions.def, for the CPU. Scalar code without branches or
// calls, so that the compiler turns loops over it into vector code; `a * b + c` becomes one fused
// instruction where the processor has it, and nothing depends on that for its accuracy.
// Coefficients are minimax fits of our own.
//
// Largest errors in units in the last place, over the range of float32 and for all instruction sets
// (testing/tolerance.py says which were sampled): power 0.5 (3.4 of the numbers in binary.cc),
// hypot 0.5, log 0.8, exp 1.0, exp2 1.1, acos 1.1, log2 1.2, atan, erf and log1p 1.4, expm1,
// sin, cos, cosh, sinh, rsqrt and atan2 1.5, log10 and softplus 1.7, asinh and acosh 1.8, asin 1.9,
// sigmoid 2.0, atanh 2.2, silu and tanh 2.5, tan 2.7; float64 3.0. gelu_tanh loses more where it is
// below 1e-30, logaddexp where it is close to 0.
#pragma once
#include "vector_basic.h"
#include "vector_exponential.h"
#include "vector_special.h"
#include "vector_trigonometric.h"
