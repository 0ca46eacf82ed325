#include "elementwise/fused.h"

#include <algorithm>
#include <cstring>

#include "elementwise/elementwise.h"
#include "base/spans.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int kSlots = 40, kSquareSlots = 4;
constexpr int kPad = 64;  // keeps tiles off the same cache sets
constexpr int64_t kTilesBytes = kSlots * (kTileBytes + kPad);
static_assert(kTilesBytes >= kSquareSlots * (kSquareTileBytes + kPad));
constexpr int kRegisters = kMaxOperands + kMaxFused;
constexpr int64_t kPiece = 512;  // elements computed at a time beside an operand that is repeated

// ---- planning ------------------------------------------------------------------------------

// The dtype of each register, and whether the program is well typed.
const char* infer_types(TileProgram* program, const Instruction* code, DType* types) {
  for (int i = 0; i < program->length; ++i) {
    const Instruction& instruction = code[i];
    int arity = arity_of(instruction.function);
    Step& step = program->steps[i];
    step.function = static_cast<int16_t>(instruction.function);
    int out = program->n_inputs + i;
    for (int k = 0; k < arity; ++k) {
      step.args[k] = instruction.args[k];
      if (step.args[k] < 0 || step.args[k] >= out) return "an argument comes after its use";
    }
    DType type = types[step.args[arity - 1]];  // the first of `where` is its condition
    for (int k = 0; k < arity; ++k) {
      bool condition = instruction.function == k_where && k == 0;
      if (types[step.args[k]] != (condition ? kBool : type)) return "the arguments' dtypes differ";
    }
    if (!loop_of(step.function, type)) return "the function is not defined for this dtype";
    step.type = static_cast<int16_t>(type);
    types[out] = gives_bool(step.function) ? kBool : type;
  }
  return nullptr;
}

// Gives each result a tile; a tile is free again after the last instruction that reads it.
bool assign_slots(TileProgram* program, bool* taken) {
  int8_t last_use[kRegisters];
  int registers = program->n_inputs + program->length;
  for (int r = 0; r < registers; ++r) last_use[r] = static_cast<int8_t>(r - program->n_inputs);
  for (int i = 0; i < program->length; ++i)
    for (int k = 0; k < arity_of(program->steps[i].function); ++k)
      last_use[program->steps[i].args[k]] = static_cast<int8_t>(i);
  for (int k = 0; k < program->n_outs; ++k) last_use[registers - 1 - k] = kMaxFused;
  for (int i = 0; i < program->length; ++i) {
    int slot = 0;
    while (slot < kSlots && taken[slot]) ++slot;
    if (slot == kSlots) return false;
    taken[slot] = true;
    program->slot[i] = static_cast<int8_t>(slot);
    for (int j = 0; j <= i; ++j)
      if (last_use[program->n_inputs + j] == i) taken[program->slot[j]] = false;
  }
  return true;
}

// Chooses the blocks, and where every value lives while a block is computed.
const char* place_values(TileProgram* program, const Operand* const* operands, const DType* types) {
  int count = program->n_outs + program->n_inputs;
  int registers = program->n_inputs + program->length;
  int64_t item = 1;  // bytes of the widest element
  for (int i = 0; i < count; ++i) item = std::max(item, kItemSize[operands[i]->dtype]);
  for (int r = 0; r < registers; ++r) item = std::max(item, kItemSize[types[r]]);
  bool few = registers <= kSquareSlots;
  int64_t tile_bytes = few ? kFewTileBytes : kTileBytes;
  int64_t square_bytes = few ? kSquareTileBytes : kTileBytes;
  program->slot_bytes = static_cast<int16_t>(square_bytes + kPad);
  if (!plan_walk(&program->walk, operands, count, tile_bytes / item, square_bytes / item))
    return "too many operands and dimensions";
  int64_t bytes = kItemSize[operands[0]->dtype];
  for (int d = 0; d < program->walk.ndim; ++d) bytes *= program->walk.dim(d)[0];
  program->streams = bytes >= elementwise_streaming_bytes();

  bool taken[kSlots] = {};
  for (int i = 0; i < count; ++i) {
    Role& operand = program->operands[i];
    operand.dense = is_dense(program->walk, i);
    bool one = program->walk.dim(0)[1 + i] == 0 && program->walk.dim(1)[1 + i] == 0;
    operand.repeated = i >= program->n_outs && program->length > 0 && !operand.dense && one;
    bool in_place = operand.dense && operand.dtype == operand.type;
    if (i >= program->n_outs) taken[operand.slot] = !in_place;
  }
  return assign_slots(program, taken) ? nullptr : "too many values are alive at once";
}

// ---- running -------------------------------------------------------------------------------

// One thread's run over a range of blocks.
class Interpreter {
 public:
  Interpreter(const TileProgram& program, void* const* buffers)
      : program_(program), buffers_(buffers) {
    for (int i = 0; i < program.n_inputs; ++i) {
      filled_from_[i] = nullptr;
      registers_[i] = tile(operand(program.n_outs + i).slot);
    }
    for (int i = 0; i < program.length; ++i)
      registers_[program.n_inputs + i] = tile(program.slot[i]);
  }

  void run(int64_t first, int64_t end) {
    position_.seek(program_.walk, first);
    for (int64_t block = first; block < end; ++block) {
      for (int i = 0; i < program_.n_inputs; ++i) fetch(i);
      place_outputs();
      for (int i = 0; i < program_.length; ++i) execute(i);
      for (int i = 0; i < program_.n_outs; ++i) store(i);
      position_.advance(program_.walk);
    }
    if (program_.streams) finish_streaming();
  }

 private:
  const Role& operand(int i) const { return program_.operands[i]; }
  void* tile(int slot) { return tiles_ + slot * program_.slot_bytes; }
  int64_t count() const { return position_.rows * position_.cols; }
  int output_register(int i) const {
    return program_.n_inputs + program_.length - program_.n_outs + i;
  }
  char* address(int i) const {
    return static_cast<char*>(buffers_[i]) + position_.offsets[i] * kItemSize[operand(i).dtype];
  }

  void fetch(int input) {
    int i = program_.n_outs + input;
    const Role& from = operand(i);
    const void* source = address(i);
    const int64_t n = from.repeated ? std::min(kPiece, count()) : count();
    if (!from.dense) {
      if (filled_from_[input] == source && filled_count_[input] == n) return;
      filled_from_[input] = source;
      filled_count_[input] = n;
      void* target = from.dtype == from.type ? tile(from.slot) : raw_;
      load_block(target, source, from.repeated ? 1 : position_.rows,
                 from.repeated ? n : position_.cols, program_.walk.dim(1)[1 + i],
                 program_.walk.dim(0)[1 + i], kItemSize[from.dtype]);
      source = target;
    }
    if (from.dtype == from.type) {
      registers_[input] = const_cast<void*>(source);
    } else {
      conversion(DType(from.dtype), DType(from.type))(tile(from.slot), &source, n);
    }
  }

  // Results that lie dense in memory are computed there.
  void place_outputs() {
    if (program_.streams) return;
    for (int i = 0; i < program_.n_outs; ++i)
      if (program_.length > 0 && operand(i).dense && operand(i).dtype == operand(i).type)
        registers_[output_register(i)] = address(i);
  }

  // Runs one instruction. In pieces if the result goes around the caches, or for an argument that
  // is repeated and of which the loop does not take one element; the tile of a result is left whole
  // for those who read it.
  void execute(int i) {
    const Step& step = program_.steps[i];
    const int out = i - (program_.length - program_.n_outs), arity = arity_of(step.function);
    const int64_t item = gives_bool(step.function) ? 1 : kItemSize[step.type], n = count();
    const bool streams = out >= 0 && streams_now(out);
    const void* inputs[3];
    int64_t advance[3];  // bytes per element
    int64_t piece = streams ? kStreamTileBytes / item : n;
    const Loop loop = loop_for(step, arity);
    for (int k = 0; k < arity; ++k) {
      const bool repeated = is_repeated(step.args[k]);
      if (repeated && !(loop.uniform >> k & 1)) piece = std::min(piece, kPiece);
      inputs[k] = registers_[step.args[k]];
      advance[k] = repeated ? 0 : step.function == k_where && k == 0 ? 1 : kItemSize[step.type];
    }
    char* result = static_cast<char*>(registers_[program_.n_inputs + i]);
    for (int64_t first = 0; first < n; first += piece) {
      const int64_t length = std::min(piece, n - first);
      loop.run(result + first * item, inputs, length);
      if (streams) stream(address(out) + first * item, result + first * item, length * item);
      for (int k = 0; k < arity; ++k)
        inputs[k] = static_cast<const char*>(inputs[k]) + length * advance[k];
    }
  }

  bool is_repeated(int from) const {
    return from < program_.n_inputs && operand(program_.n_outs + from).repeated;
  }

  Loop loop_for(const Step& step, int arity) const {
    uint32_t ones = 0;
    for (int k = 0; k < arity; ++k) ones |= uint32_t{is_repeated(step.args[k])} << k;
    return choose_loop(loops_of(step.function, DType(step.type)), arity, ones);
  }

  bool streams_now(int out) const {
    const Role& to = operand(out);
    return program_.streams && to.dense && to.dtype == to.type && is_streamable(address(out));
  }

  void store(int i) {
    const Role& to = operand(i);
    const void* source = registers_[output_register(i)];
    char* target = address(i);
    if (source == target || (program_.length > 0 && streams_now(i))) return;
    if (to.dtype != to.type) {
      void* converted = to.dense && !program_.streams ? target : raw_;
      conversion(DType(to.type), DType(to.dtype))(converted, &source, count());
      source = converted;
      if (source == target) return;
    }
    const int64_t bytes = count() * kItemSize[to.dtype];
    if (program_.streams && to.dense && is_streamable(target)) return stream(target, source, bytes);
    if (to.dense) {
      std::memcpy(target, source, static_cast<size_t>(bytes));
      return;
    }
    const int64_t item = kItemSize[to.dtype], stride = program_.walk.dim(1)[1 + i] * item;
    if (program_.streams && streams_rows(i, stride)) {
      stream_rows(target, static_cast<const char*>(source), stride, position_.cols * item);
    } else {
      store_block(target, source, position_.rows, position_.cols, program_.walk.dim(1)[1 + i],
                  program_.walk.dim(0)[1 + i], item);
    }
  }

  // Whether all rows of the block begin with a line of the caches.
  bool streams_rows(int i, int64_t stride) const {
    return program_.walk.dim(0)[1 + i] == 1 && stride % kStreamAlignment == 0 &&
           is_streamable(address(i));
  }

  // Stores the rows of a block, which are parts of the result's rows, past the caches.
  void stream_rows(char* target, const char* source, int64_t stride, int64_t bytes) const {
    for (int64_t row = 0; row < position_.rows; ++row)
      stream(target + row * stride, source + row * bytes, bytes);
  }

  const TileProgram& program_;
  void* const* buffers_;
  Position position_;
  void* registers_[kRegisters];
  const void* filled_from_[kMaxOperands];  // a broadcast tile is filled once, not per block
  int64_t filled_count_[kMaxOperands];
  alignas(64) char raw_[kSquareTileBytes];
  alignas(64) char tiles_[kTilesBytes];
};

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

const char* plan_program(Plan* plan, const Instruction* code, int32_t length, const Operand* outs,
                         int32_t n_outs, const Operand* inputs, int32_t n_inputs,
                         const DType* input_types) {
  static_assert(alignof(TileProgram) <= 16);
  if (n_outs + n_inputs > kMaxOperands || length > kMaxFused) return "the program is too long";
  auto* program = reinterpret_cast<TileProgram*>(plan->state);
  plan->run = run_program;
  plan->workspace = 0;
  program->n_outs = static_cast<int16_t>(n_outs);
  program->n_inputs = static_cast<int16_t>(n_inputs);
  program->length = static_cast<int16_t>(length);

  DType types[kRegisters];
  std::copy(input_types, input_types + n_inputs, types);
  if (const char* problem = infer_types(program, code, types)) return problem;
  const Operand* operands[kMaxOperands];
  for (int i = 0; i < n_outs; ++i) {
    operands[i] = &outs[i];
    DType type = types[n_inputs + length - n_outs + i];
    if (register_type(outs[i].dtype) != register_type(type))
      return "the output's dtype is not the result's";
    program->operands[i] = {int8_t(outs[i].dtype), int8_t(type), 0, 0, 0};
  }
  for (int i = 0; i < n_inputs; ++i) {
    operands[n_outs + i] = &inputs[i];
    program->operands[n_outs + i] = {int8_t(inputs[i].dtype), int8_t(types[i]), 0, int8_t(i), 0};
  }
  return place_values(program, operands, types);
}

const char* plan_fused(Plan* plan, const Instruction* program, int32_t length, const Operand* outs,
                       int32_t n_outs, const Operand* inputs, int32_t n_inputs) {
  if (n_inputs > kMaxOperands) return "too many inputs";
  DType types[kMaxOperands];
  for (int i = 0; i < n_inputs; ++i) types[i] = register_type(inputs[i].dtype);
  return plan_program(plan, program, length, outs, n_outs, inputs, n_inputs, types);
}

}  // namespace needle::NEEDLE_ISA
