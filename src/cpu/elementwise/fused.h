// The tile interpreter: a small program of contiguous loops, run on one block at a time. Strided
// elementwise functions, copies and fills are programs of one instruction or none.
#pragma once
#include "elementwise/loops.h"
#include "base/walk.h"

namespace needle::NEEDLE_ISA {

// Registers are numbered as in a FusedProgram. Those of float16 and bfloat16 are held as float32.
struct Step {
  int8_t function;
  int8_t type;  // in which the arguments are held
  int8_t out;   // of the result; float32 too where rounding can wait until it is stored
  int8_t args[3];
};
constexpr int kFusedFunctions = int{kFunctions} + int{kDTypes};  // with the casts
static_assert(kFusedFunctions <= INT8_MAX);

struct Role {
  int8_t dtype, type;  // in memory, in the register
  int8_t dense;        // used where it lies
  int8_t slot;         // otherwise the tile that holds it
  int8_t repeated;     // one element for a whole block: the tile holds kPiece of it
  int8_t last;         // of an input: the last instruction that reads it; -1: none
};

struct TileProgram {
  Walk walk;
  int16_t n_outs, n_inputs, n_numbers, length;
  int16_t slot_bytes;            // of a tile
  bool streams;                  // results go around the caches
  bool far;                      // operands are fetched ahead (ahead.h)
  Role operands[kMaxOperands];   // outs, then inputs
  int8_t results[kMaxOperands];  // the registers of the outs
  int8_t slot[kMaxFused];        // the tile of each result
  int8_t number_slot[kMaxNumbers];
  int8_t number_type[kMaxNumbers];
  Step steps[kMaxFused];
  int64_t numbers[kMaxNumbers];  // bits of their type
  Run run;                       // of a fill: the run of its copy
  int64_t fill;                  // and its source

  int first_result() const { return n_inputs + n_numbers; }
};
static_assert(sizeof(TileProgram) <= kPlanBytes);

// input_types: the dtypes of the input registers, to which the inputs are converted.
const char* plan_program(Plan* plan, const FusedProgram& program, const Operand* outs,
                         int32_t n_outs, const Operand* inputs, int32_t n_inputs,
                         const DType* input_types);

}  // namespace needle::NEEDLE_ISA
