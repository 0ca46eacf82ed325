// The functions behind the rows of functions.def, for the CPU. Scalar code without branches or
// calls, so that the compiler turns loops over it into vector code; `a * b + c` becomes one fused
// instruction where the processor has it, and nothing depends on that for its accuracy.
// Coefficients are minimax fits of our own. The largest errors, in units in the last place (ulp),
// were measured over all float32 and over samples of float64.
#pragma once
#include "vector_basic.h"
#include "vector_exponential.h"
#include "vector_special.h"
#include "vector_trigonometric.h"
