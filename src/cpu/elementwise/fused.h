// The tile interpreter: a small program of contiguous loops, run on one block at a time. Strided
// elementwise functions, copies and fills are programs of one instruction or none.
#pragma once
#include "elementwise/loops.h"
#include "base/walk.h"

namespace needle::NEEDLE_ISA {

// Registers are numbered as in an Instruction: inputs, then results.
struct Step {
  int16_t function, type;  // type: of the arguments
  int16_t args[3];
};

struct Role {
  int8_t dtype, type;  // in memory, in the register
  int8_t dense;        // used where it lies
  int8_t slot;         // otherwise the tile that holds it
  int8_t repeated;     // one element for a whole block: the tile holds kPiece of it
};

struct TileProgram {
  Walk walk;
  int16_t n_outs, n_inputs, length;
  int16_t slot_bytes;           // of a tile
  bool streams;                 // results go around the caches
  Role operands[kMaxOperands];  // outs, then inputs
  int8_t slot[kMaxFused];       // the tile of each result
  Step steps[kMaxFused];
  Run run;       // of a fill: the run of its copy
  int64_t fill;  // and its source
};
static_assert(sizeof(TileProgram) <= kPlanBytes);

// input_types: the dtypes of the input registers, to which the inputs are converted.
const char* plan_program(Plan* plan, const Instruction* code, int32_t length, const Operand* outs,
                         int32_t n_outs, const Operand* inputs, int32_t n_inputs,
                         const DType* input_types);

}  // namespace needle::NEEDLE_ISA
