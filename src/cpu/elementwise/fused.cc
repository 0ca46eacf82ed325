#include "elementwise/interpreter.h"

#include "base/spans.h"
#include "base/table.h"

namespace needle::NEEDLE_ISA {
namespace {

// ---- planning ------------------------------------------------------------------------------

// The dtype of each register, and whether the program is well typed.
const char* infer_types(TileProgram* program, const Instruction* code, DType* types) {
  for (int i = 0; i < program->length; ++i) {
    const int32_t function = code[i].function;
    if (function < 0 || function >= kFusedFunctions) return "there is no such function";
    const int arity = arguments_of(function), out = program->first_result() + i;
    Step& step = program->steps[i];
    step = {static_cast<int8_t>(function), 0, 0, {}};
    for (int k = 0; k < arity; ++k) {
      if (code[i].args[k] < 0 || code[i].args[k] >= out) return "an argument comes after its use";
      step.args[k] = static_cast<int8_t>(code[i].args[k]);
    }
    const DType type = types[step.args[arity - 1]];  // the first of `where` is its condition
    step.type = static_cast<int8_t>(held_type(type));
    if (is_cast(function)) {
      types[out] = DType(function - kFunctions);
    } else {
      for (int k = 0; k < arity; ++k) {
        const bool condition = function == k_where && k == 0;
        if (types[step.args[k]] != (condition ? kBool : type))
          return "the arguments' dtypes differ";
      }
      if (!loop_of(function, held_type(type))) return "the function is not defined for this dtype";
      types[out] = gives_bool(function) ? kBool : type;
    }
    step.out = static_cast<int8_t>(types[out]);
  }
  return nullptr;
}

// The last instruction that reads each register; kMaxFused: it is an output; -1: none.
void find_uses(TileProgram* program, int8_t* last_use) {
  std::fill_n(last_use, kRegisters, int8_t{-1});
  for (int i = 0; i < program->length; ++i)
    for (int k = 0; k < arguments_of(program->steps[i].function); ++k)
      last_use[program->steps[i].args[k]] = static_cast<int8_t>(i);
  for (int i = 0; i < program->n_inputs; ++i)
    program->operands[program->n_outs + i].last = last_use[i];
  for (int i = 0; i < program->length; ++i) {
    Step& step = program->steps[i];
    const bool waits = !is_cast(step.function) && last_use[program->first_result() + i] < 0;
    if (is_half(step.out) && waits) step.out = kFloat32;
  }
  for (int k = 0; k < program->n_outs; ++k) last_use[program->results[k]] = kMaxFused;
}

// Gives a tile to each register that needs one; that of a result is free again after the last
// instruction that reads it. Returns how many there are.
int assign_slots(TileProgram* program, const int8_t* last_use) {
  bool taken[kSlots + 1] = {};
  int used = 0;
  const auto take = [&] {
    int slot = 0;
    while (slot < kSlots && taken[slot]) ++slot;
    taken[slot] = true;
    used = std::max(used, slot + 1);
    return static_cast<int8_t>(slot);
  };
  for (int i = 0; i < program->n_inputs; ++i) {
    Role& input = program->operands[program->n_outs + i];
    if (!input.dense || input.dtype != input.type) input.slot = take();
  }
  for (int k = 0; k < program->n_numbers; ++k) program->number_slot[k] = take();
  for (int i = 0; i < program->length; ++i) {
    program->slot[i] = take();
    for (int j = 0; j <= i; ++j)
      if (last_use[program->first_result() + j] == i) taken[program->slot[j]] = false;
  }
  return used;
}

// Chooses blocks of at most so many elements. Returns how many tiles there are, or 0: too many
// operands and dimensions.
int place_values(TileProgram* program, const Operand* const* operands, const int8_t* last_use,
                 int64_t tile) {
  const int count = program->n_outs + program->n_inputs;
  if (!plan_walk(&program->walk, operands, count, tile)) return 0;
  for (int i = 0; i < count; ++i) {
    Role& operand = program->operands[i];
    operand.dense = is_dense(program->walk, i);
    const bool one = program->walk.dim(0)[1 + i] == 0 && program->walk.dim(1)[1 + i] == 0;
    operand.repeated = i >= program->n_outs && program->length > 0 && !operand.dense && one;
  }
  return std::max(1, assign_slots(program, last_use));
}

const char* choose_blocks(TileProgram* program, const Operand* const* operands,
                          const DType* types) {
  const int registers = program->first_result() + program->length;
  int64_t item = 1;  // bytes of the widest element
  for (int i = 0; i < program->n_outs + program->n_inputs; ++i)
    item = std::max(item, kItemSize[operands[i]->dtype]);
  for (int r = 0; r < registers; ++r) item = std::max(item, kItemSize[held_type(types[r])]);
  int8_t last_use[kRegisters];
  find_uses(program, last_use);
  const bool few = registers - program->n_numbers <= kSquareSlots;
  int64_t bytes = kMostTileBytes;
  for (;; bytes /= 2) {
    const int slots = place_values(program, operands, last_use, bytes / item);
    if (slots == 0) return "too many operands and dimensions";
    if (slots > kSlots) return "too many values are alive at once";
    const bool fit = (few && slots <= kSquareSlots) || slots * bytes <= kNearBytes;
    if (fit || bytes == kLeastTileBytes) break;
  }
  program->far = reads_far(*program);
  if (program->far && bytes > kFarTileBytes)
    place_values(program, operands, last_use, (bytes = kFarTileBytes) / item);
  program->slot_bytes = static_cast<int16_t>(bytes + kPad);
  int64_t size = kItemSize[operands[0]->dtype];
  for (int d = 0; d < program->walk.ndim; ++d) size *= program->walk.dim(d)[0];
  program->streams = size >= elementwise_streaming_bytes();
  return nullptr;
}

void set_numbers(TileProgram* program, const FusedProgram& from, DType* types) {
  program->n_numbers = static_cast<int16_t>(from.n_numbers);
  for (int k = 0; k < from.n_numbers; ++k) {
    const DType dtype = from.numbers[k].dtype, held = held_type(dtype);
    int64_t bits = 0;
    convert_all(kFloat64, dtype, &bits, &from.numbers[k].value, 1);
    program->numbers[k] = bits;
    if (held != dtype) convert_all(dtype, held, &program->numbers[k], &bits, 1);
    program->number_type[k] = static_cast<int8_t>(held);
    types[program->n_inputs + k] = dtype;
  }
}

const char* set_results(TileProgram* program, const int16_t* results) {
  const int end = program->first_result() + program->length;
  const int first = program->length > 0 ? program->first_result() : 0;
  for (int i = 0; i < program->n_outs; ++i) {
    const int r = results ? results[i] : end - program->n_outs + i;
    if (r < first || r >= end) return "an output is no result of an instruction";
    for (int j = 0; j < i; ++j)
      if (program->results[j] == r) return "two outputs are one result";
    program->results[i] = static_cast<int8_t>(r);
  }
  return nullptr;
}

// ---- running -------------------------------------------------------------------------------

__attribute__((noinline)) void run_range(const TileProgram& program, void* const* buffers,
                                         int64_t first, int64_t end) {
  if (first < end) Interpreter(program, buffers).run(first, end);
}

int64_t run_program(const Plan* plan, void* const* buffers, void*) {
  const auto& program = *reinterpret_cast<const TileProgram*>(plan->state);
  const int64_t blocks = program.walk.blocks, n = blocks * program.walk.rows * program.walk.cols;
  if (n < kSerial) {
    run_range(program, buffers, 0, blocks);
    return -1;
  }
  int64_t item = 0;
  for (int i = 0; i < program.n_outs + program.n_inputs; ++i)
    item += kItemSize[program.operands[i].dtype];
  run_pieces(blocks, n * item,
             [&](int64_t first, int64_t end) { run_range(program, buffers, first, end); });
  return -1;
}

}  // namespace

const char* plan_program(Plan* plan, const FusedProgram& from, const Operand* outs, int32_t n_outs,
                         const Operand* inputs, int32_t n_inputs, const DType* input_types) {
  static_assert(alignof(TileProgram) <= 16);
  if (n_outs + n_inputs > kMaxOperands || from.length > kMaxFused || from.n_numbers > kMaxNumbers)
    return "the program is too long";
  auto* program = reinterpret_cast<TileProgram*>(plan->state);
  plan->run = run_program;
  plan->workspace = 0;
  program->n_outs = static_cast<int16_t>(n_outs);
  program->n_inputs = static_cast<int16_t>(n_inputs);
  program->length = static_cast<int16_t>(from.length);

  DType types[kRegisters];
  std::copy(input_types, input_types + n_inputs, types);
  set_numbers(program, from, types);
  if (const char* problem = infer_types(program, from.code, types)) return problem;
  if (const char* problem = set_results(program, from.results)) return problem;
  const auto held = [&](DType type) { return from.length > 0 ? held_type(type) : type; };
  const Operand* operands[kMaxOperands];
  for (int i = 0; i < n_outs; ++i) {
    operands[i] = &outs[i];
    const DType type = held(types[program->results[i]]);
    if (held(outs[i].dtype) != type) return "the output's dtype is not the result's";
    program->operands[i] = {int8_t(outs[i].dtype), int8_t(type), 0, 0, 0, -1};
  }
  for (int i = 0; i < n_inputs; ++i) {
    operands[n_outs + i] = &inputs[i];
    program->operands[n_outs + i] = {int8_t(inputs[i].dtype), int8_t(held(types[i])), 0, 0, 0, -1};
  }
  return choose_blocks(program, operands, types);
}

const char* plan_fused(Plan* plan, const FusedProgram& program, const Operand* outs, int32_t n_outs,
                       const Operand* inputs, int32_t n_inputs) {
  if (n_inputs > kMaxOperands) return "too many inputs";
  DType types[kMaxOperands];
  for (int i = 0; i < n_inputs; ++i) types[i] = inputs[i].dtype;
  return plan_program(plan, program, outs, n_outs, inputs, n_inputs, types);
}

}  // namespace needle::NEEDLE_ISA
