#include "gemm/epilogue.h"

#include "base/spans.h"
#include "isa/lanes.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kPiece = 2048;  // elements that all functions go over before the next ones

// Null, or why the other operand of a step cannot be read.
const char* plan_operand(EpilogueLoop* step, const Operand& out, const Operand& x) {
  if (x.dtype != out.dtype) return "matmul: dtypes differ";
  if (x.ndim != out.ndim) return "matmul: an operand is not broadcast";
  const int last = out.ndim - 1;
  bool is_row = out.shape[last] == 1 || x.strides[last] == 1, is_same = true;
  for (int i = 0; i <= last; ++i) {
    if (out.shape[i] == 1) continue;
    is_same &= x.strides[i] == out.strides[i];
    is_row &= i == last || x.strides[i] == 0;
  }
  step->is_row = is_row && !is_same;
  return is_row || is_same ? nullptr : "matmul: an operand is neither a row nor dense";
}

// The usual bias, of rows that may be short.
template <class T>
void add_row(void* out, const void* const* inputs, int64_t n) {
  const T *x = as<T>(inputs[0]), *y = as<T>(inputs[1]);
  for_vectors<T>(n, [&](int64_t i, const auto& part) {
    part.store(as<T>(out) + i, part.load(x + i) + part.load(y + i));
  });
}

const char* plan_step(EpilogueLoop* loop, const Operand& out, const EpilogueStep& step) {
  const int32_t arity = arity_of(step.function);
  if (arity > 2 || gives_bool(step.function)) return "matmul: no such function can follow";
  loop->run = loop_of(step.function, out.dtype);
  loop->is_wide = !loop->run;
  if (!loop->run) loop->run = loop_of(step.function, register_type(out.dtype));
  if (!loop->run) return "matmul: the function is not defined for this dtype";
  loop->is_binary = arity == 2;
  loop->is_row = false;
  loop->place = static_cast<int8_t>(loop->is_binary && !step.value_first);
  if (!loop->is_binary) return nullptr;
  if (const char* problem = plan_operand(loop, out, step.operand)) return problem;
  if (kMaskedLoads && loop->is_row && step.function == k_add) {
    if (out.dtype == kFloat32) loop->run = add_row<float>;
    if (out.dtype == kFloat64) loop->run = add_row<double>;
  }
  return nullptr;
}

void run_wide(const EpilogueLoop& step, DType dtype, void* out, const void* const* inputs,
              int64_t n) {
  alignas(64) float wide[2][kPiece];
  const void* const both[] = {wide[0], wide[1]};
  for (int i = 0; i <= step.is_binary; ++i) conversion(dtype, kFloat32)(wide[i], inputs + i, n);
  step.run(wide[0], both, n);
  conversion(kFloat32, dtype)(out, both, n);
}

// Rows of `width` elements, at most kPiece altogether; `at` is the first one, in this column.
void finish_piece(const EpiloguePlan& epilogue, void* const* buffers, int64_t at, int64_t column,
                  int64_t rows, int64_t width) {
  const int64_t item = kItemSize[epilogue.dtype];
  const void* value = buffers[0];
  void* const* operand = buffers + 4;
  for (int i = 0; i < epilogue.length; ++i) {
    const EpilogueLoop& step = epilogue.steps[i];
    const void* other = step.is_binary ? *operand++ : nullptr;
    void* out = i < epilogue.kept || epilogue.kept < 0 ? buffers[0] : buffers[3];
    // Whole rows lie one after the other.
    const int64_t lines = width == epilogue.n && !step.is_row ? 1 : rows;
    const int64_t n = rows / lines * width;
    for (int64_t line = 0; line < lines; ++line) {
      const int64_t offset = (at + line * epilogue.n) * item;
      const void* inputs[2] = {byte_offset(value, offset), byte_offset(value, offset)};
      if (step.is_binary)
        inputs[1 - step.place] = byte_offset(other, step.is_row ? column * item : offset);
      if (step.is_wide)
        run_wide(step, epilogue.dtype, byte_offset(out, offset), inputs, n);
      else
        step.run(byte_offset(out, offset), inputs, n);
    }
    value = out;
  }
}

int64_t run_then_finish(const Plan* plan, void* const* buffers, void* workspace) {
  const EpiloguePlan& epilogue = epilogue_of(plan);
  epilogue.product(plan, buffers, workspace);
  const int64_t size = epilogue.rows * epilogue.n;
  if (size < kSerial) {
    if (size > 0) finish_rows(epilogue, buffers, 0, epilogue.rows, epilogue.n);
    return -1;
  }
  run_pieces(epilogue.rows, size * kItemSize[epilogue.dtype], [&](int64_t first, int64_t end) {
    finish_rows(epilogue, buffers, first * epilogue.n, end - first, epilogue.n);
  });
  return -1;
}

}  // namespace

const char* plan_epilogue(EpiloguePlan* plan, const Operand& out, const Epilogue& epilogue) {
  if (epilogue.length < 1 || epilogue.length > kMostEpilogue)
    return "matmul: too many functions follow";
  plan->dtype = out.dtype;
  plan->n = out.shape[out.ndim - 1];
  plan->rows = plan->n ? element_count(out) / plan->n : 0;
  plan->length = epilogue.length;
  plan->kept = epilogue.kept;
  plan->has_rows = false;
  for (int i = 0; i < epilogue.length; ++i) {
    if (const char* problem = plan_step(&plan->steps[i], out, epilogue.steps[i])) return problem;
    plan->has_rows |= plan->steps[i].is_row;
  }
  return nullptr;
}

void finish_rows(const EpiloguePlan& epilogue, void* const* buffers, int64_t at, int64_t rows,
                 int64_t width) {
  const int64_t column = epilogue.has_rows ? at % epilogue.n : 0;
  const int64_t height = most(1, kPiece / most(1, width));
  for (int64_t i = 0; i < rows; i += height, at += height * epilogue.n)
    for (int64_t j = 0; j < width; j += kPiece)
      finish_piece(epilogue, buffers, at + j, column + j, least(height, rows - i),
                   least(kPiece, width - j));
}

void finish_later(Plan* plan, const EpiloguePlan& epilogue) {
  EpiloguePlan& own = epilogue_of(plan);
  own = epilogue;
  own.product = plan->run;
  plan->run = run_then_finish;
}

}  // namespace needle::NEEDLE_ISA
