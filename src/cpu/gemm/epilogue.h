// What follows a matrix product, by the loops of the elementwise kernels, on rows of the result
// that are still in a cache. So the results have the bits of separate kernels.
#pragma once
#include "base/axes.h"
#include "elementwise/loops.h"

namespace needle::NEEDLE_ISA {

struct EpilogueLoop {
  Contiguous run;
  bool is_wide;            // over float32, to which and from which elements are converted
  bool is_binary, is_row;  // its other operand: dense as the result, or a row
  int8_t place;            // of the value so far among its operands
};

// At the end of the plan of a product.
struct EpiloguePlan {
  Run product;  // what runs before, if that does not finish its own rows
  int64_t n;    // of a row
  int64_t rows;
  DType dtype;
  bool has_rows;         // are any operands rows?
  int32_t length, kept;  // see Epilogue
  EpilogueLoop steps[kMostEpilogue];
};

inline EpiloguePlan& epilogue_of(Plan* plan) {
  return *reinterpret_cast<EpiloguePlan*>(plan->state + kPlanBytes - sizeof(EpiloguePlan));
}
inline const EpiloguePlan& epilogue_of(const Plan* plan) {
  return epilogue_of(const_cast<Plan*>(plan));
}

// Returns null, or why there is no such epilogue.
const char* plan_epilogue(EpiloguePlan* plan, const Operand& out, const Epilogue& epilogue);

// Finishes rows of the result, `width` elements of each, from element `at` on.
void finish_rows(const EpiloguePlan& epilogue, void* const* buffers, int64_t at, int64_t rows,
                 int64_t width);

// A plan that finishes the whole result at the end.
void finish_later(Plan* plan, const EpiloguePlan& epilogue);

}  // namespace needle::NEEDLE_ISA
