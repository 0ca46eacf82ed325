#include "elementwise/fused.h"

#include <algorithm>
#include <cstring>

#include "base/table.h"
#include "elementwise/ahead.h"
#include "base/spans.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int kSlots = 40, kSquareSlots = 4;
constexpr int kPad = 64;  // keeps tiles off the same cache sets
constexpr int64_t kTilesBytes = kSlots * (kLeastTileBytes + kPad);
constexpr int64_t kNearBytes = 32 << 10;  // of all tiles, if there are so few: the first cache
static_assert(kTilesBytes >= kSquareSlots * (kMostTileBytes + kPad));
static_assert(kTilesBytes >= kNearBytes / kLeastTileBytes * (kLeastTileBytes + kPad));
constexpr int kRegisters = kMaxOperands + kMaxNumbers + kMaxFused;
static_assert(kRegisters <= INT8_MAX);
constexpr int64_t kPiece = 512;  // elements computed at a time beside an operand that is repeated

bool is_cast(int function) { return function >= kFunctions; }
int arguments_of(int function) { return is_cast(function) ? 1 : arity_of(function); }
bool is_half(int dtype) { return dtype == kFloat16 || dtype == kBFloat16; }
DType held_type(int dtype) { return register_type(DType(dtype)); }

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

void convert(DType from, DType to, void* out, const void* x, int64_t n) {
  conversion(from, to)(out, &x, n);
}

void set_numbers(TileProgram* program, const FusedProgram& from, DType* types) {
  program->n_numbers = static_cast<int16_t>(from.n_numbers);
  for (int k = 0; k < from.n_numbers; ++k) {
    const DType dtype = from.numbers[k].dtype, held = held_type(dtype);
    int64_t bits = 0;
    convert(kFloat64, dtype, &bits, &from.numbers[k].value, 1);
    program->numbers[k] = bits;
    if (held != dtype) convert(dtype, held, &program->numbers[k], &bits, 1);
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

// One thread's run over a range of blocks.
class Interpreter {
 public:
  Interpreter(const TileProgram& program, void* const* buffers)
      : program_(program), buffers_(buffers) {
    for (int i = 0; i < program.n_inputs; ++i) {
      filled_from_[i] = nullptr;
      registers_[i] = tile(operand(program.n_outs + i).slot);
    }
    for (int k = 0; k < program.n_numbers; ++k) fill_number(k);
    std::fill_n(output_of_, program.length, int8_t{-1});
    for (int i = 0; i < program.length; ++i)
      registers_[program.first_result() + i] = tile(program.slot[i]);
    for (int i = 0; i < program.n_outs; ++i) {
      const int step = program.results[i] - program.first_result();
      if (program.length > 0) output_of_[step] = static_cast<int8_t>(i);
      is_direct_[i] = program.length > 0 && operand(i).dense &&
                      operand(i).dtype == operand(i).type && !is_read_after(i, step);
    }
  }

  void run(int64_t first, int64_t end) {
    position_.seek(program_.walk, first);
    for (int64_t block = first; block < end; ++block) {
      for (int i = 0; i < program_.n_inputs; ++i) fetch(i);
      place_outputs();
      if (program_.far) look_ahead();
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
  char* address(int i) const {
    return static_cast<char*>(buffers_[i]) + position_.offsets[i] * kItemSize[operand(i).dtype];
  }

  // Whether the memory of an output is an input's that later instructions read.
  bool is_read_after(int out, int step) const {
    for (int i = 0; i < program_.n_inputs; ++i) {
      const int at = program_.n_outs + i;
      if (buffers_[at] == buffers_[out] && operand(at).last > step) return true;
    }
    return false;
  }

  void fill_number(int k) {
    void* to = registers_[program_.n_inputs + k] = tile(program_.number_slot[k]);
    const int64_t n = std::min(kPiece, program_.walk.rows * program_.walk.cols);
    load_block(to, &program_.numbers[k], 1, n, 0, 0, kItemSize[program_.number_type[k]]);
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
      convert(DType(from.dtype), DType(from.type), tile(from.slot), source, n);
    }
  }

  // Results that lie dense in memory are computed there.
  void place_outputs() {
    if (program_.streams) return;
    for (int i = 0; i < program_.n_outs; ++i)
      if (is_direct_[i]) registers_[program_.results[i]] = address(i);
  }

  void look_ahead() {
    ahead_.begin(count(), program_.length);
    for (int i = program_.n_outs; i < program_.n_outs + program_.n_inputs; ++i)
      if (operand(i).dense) ahead_.add(address(i), kItemSize[operand(i).dtype]);
  }

  // Runs one instruction. In pieces if the result goes around the caches, or for an argument that
  // is repeated and of which the loop does not take one element; the tile of a result is left whole
  // for those who read it.
  void execute(int i) {
    const Step& step = program_.steps[i];
    const int out = output_of_[i], arity = arguments_of(step.function);
    const int64_t item = kItemSize[held_type(step.out)], n = count();
    const bool streams = out >= 0 && streams_now(out);
    const void* inputs[3];
    int64_t advance[3];  // bytes per element
    int64_t piece = streams ? kStreamTileBytes / item : program_.far ? Ahead::kPiece : n;
    const Loop loop = loop_for(step, arity);
    for (int k = 0; k < arity; ++k) {
      const bool repeated = is_repeated(step.args[k]);
      if (repeated && !(loop.uniform >> k & 1)) piece = std::min(piece, kPiece);
      inputs[k] = registers_[step.args[k]];
      advance[k] = repeated ? 0 : step.function == k_where && k == 0 ? 1 : kItemSize[step.type];
    }
    char* result = static_cast<char*>(registers_[program_.first_result() + i]);
    for (int64_t first = 0; first < n; first += piece) {
      const int64_t length = std::min(piece, n - first);
      void* to = result + first * item;
      if (is_half(step.out)) {
        if (!is_cast(step.function)) {
          loop.run(to, inputs, length);
          convert(kFloat32, DType(step.out), raw_, to, length);
        } else {
          loop.run(raw_, inputs, length);
        }
        convert(DType(step.out), kFloat32, to, raw_, length);
      } else {
        loop.run(to, inputs, length);
      }
      if (program_.far) ahead_.fetch();
      if (streams) stream(address(out) + first * item, to, length * item);
      for (int k = 0; k < arity; ++k)
        inputs[k] = static_cast<const char*>(inputs[k]) + length * advance[k];
    }
  }

  bool is_repeated(int from) const {
    if (from >= program_.n_inputs) return from < program_.first_result();
    return operand(program_.n_outs + from).repeated;
  }

  Loop loop_for(const Step& step, int arity) const {
    if (is_cast(step.function))
      return {conversion(DType(step.type), DType(step.function - kFunctions)), 0};
    uint32_t ones = 0;
    for (int k = 0; k < arity; ++k) ones |= uint32_t{is_repeated(step.args[k])} << k;
    return choose_loop(loops_of(step.function, DType(step.type)), arity, ones);
  }

  bool streams_now(int out) const {
    return program_.streams && is_direct_[out] && is_streamable(address(out));
  }

  void store(int i) {
    const Role& to = operand(i);
    const void* source = registers_[program_.results[i]];
    char* target = address(i);
    if (source == target || streams_now(i)) return;
    if (to.dtype != to.type) {
      void* converted = to.dense && !program_.streams ? target : raw_;
      convert(DType(to.type), DType(to.dtype), converted, source, count());
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
  Ahead ahead_;
  void* registers_[kRegisters];
  const void* filled_from_[kMaxOperands];  // a broadcast tile is filled once, not per block
  int64_t filled_count_[kMaxOperands];
  int8_t output_of_[kMaxFused];   // the output that each instruction gives; -1: none
  bool is_direct_[kMaxOperands];  // the output may be written before the last instruction
  alignas(64) char raw_[kMostTileBytes];
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
