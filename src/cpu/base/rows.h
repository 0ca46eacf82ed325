// One contiguous loop over operands whose rows are dense or of one element each: broadcast rows,
// columns and numbers, slices. Operands are read where they lie.
#pragma once
#include "elementwise/loops.h"

namespace needle::NEEDLE_ISA {

// One thread's part of a loop: n elements, results past the caches from an aligned address on.
// `items` are the bytes per element of out and inputs; 0: the same elements again. `fetched` are
// those of the inputs that lie in memory, not in a cache.
void run_streaming(const Loop& loop, const int64_t* items, const int64_t* fetched, int n_inputs,
                   char* const* operands, int64_t n);

// The same through the caches: lines of the result are fetched ahead.
void run_fetching(Contiguous loop, const int64_t* items, int n_inputs, char* const* operands,
                  int64_t n);

// False without such rows, or if they are too short or their dtype is computed in another.
bool plan_rows(Plan* plan, const Loops& loops, const Operand& out, const Operand* inputs,
               int32_t n);

}  // namespace needle::NEEDLE_ISA
