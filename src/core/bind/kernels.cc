// Kernels as functions of arrays that are there: what backend/native.py calls.
#include "bind/calls.h"
#include <algorithm>

namespace needle {
namespace {

// Whether the first output may lie where an input does: one whose memory is as large is the same
// view, then.
bool may_share(const Array* out, nb::list inputs) {
  const Operand other = operand(out);
  for (nb::handle given : inputs) {
    const Array* x = native(given);
    const Operand own = operand(x);
    const bool same = kItemSize[own.dtype] == kItemSize[other.dtype] &&
                      std::equal(own.strides, own.strides + own.ndim, other.strides);
    if (!same && x->storage->nbytes == out->storage->nbytes) return false;
  }
  return true;
}

void add_operands(nb::list arrays, std::vector<Operand>& operands, std::vector<void*>& buffers) {
  for (nb::handle x : arrays) {
    operands.push_back(operand(native(x)));
    buffers.push_back(address(native(x)));
  }
}

void run_fused(nb::handle program, nb::handle numbers, nb::handle results, nb::list outs,
               nb::list inputs) {
  const Fused fused(program, numbers, results);
  std::vector<Operand> out_operands, in_operands;
  std::vector<void*> buffers;
  add_operands(outs, out_operands, buffers);
  add_operands(inputs, in_operands, buffers);
  Plan plan;
  check(kernels->plan_fused(&plan, fused.program(), out_operands.data(),
                            static_cast<int>(out_operands.size()), in_operands.data(),
                            static_cast<int>(in_operands.size())),
        "run_fused", native(outs[0]));
  run_buffers(plan, buffers, kWork * native(outs[0])->spec->size,
              may_share(native(outs[0]), inputs) ? kSameView : 0);
}

// Whether there is a kernel. reduction: (code, axes, dtype of what is reduced).
bool reduce_fused(nb::handle program, nb::handle numbers, nb::handle results, nb::handle reduction,
                  nb::list outs, nb::list inputs) {
  const Fused fused(program, numbers, results);
  FusedReduction own{nb::cast<int>(reduction[0]), 0, DType(nb::cast<int>(reduction[2]))};
  for (nb::handle axis : reduction[1]) own.axes |= 1u << nb::cast<int>(axis);
  std::vector<Operand> out_operands, in_operands;
  std::vector<void*> buffers;
  add_operands(outs, out_operands, buffers);
  add_operands(inputs, in_operands, buffers);
  Plan plan;
  if (kernels->plan_fused_reduce(&plan, own, fused.program(), out_operands.data(),
                                 static_cast<int>(out_operands.size()), in_operands.data(),
                                 static_cast<int>(in_operands.size()))) {
    return false;
  }
  const bool shares = out_operands.size() > 1 && may_share(native(outs[0]), inputs);
  run_buffers(plan, buffers, kWork * native(inputs[0])->spec->size, shares ? kSameView : 0);
  return true;
}

// Whether there is a kernel. steps: (function, place of the value among its operands, or -1 if it
// is the only one); others: the other operands; last: None, or what takes the last value, if out
// takes that before the step `kept`.
bool matmul_epilogue(nb::handle out, nb::handle a, nb::handle b, nb::list steps, nb::list others,
                     int kept, nb::handle last) {
  Epilogue epilogue{0, kept, {}};
  std::vector<void*> buffers{address(native(out)), address(native(a)), address(native(b)),
                             last.is_none() ? nullptr : address(native(last))};
  if (nb::len(steps) > kMostEpilogue || nb::len(others) > kMostEpilogue) return false;
  for (nb::handle step : steps) {
    EpilogueStep& own = epilogue.steps[epilogue.length++];
    own.function = nb::cast<int>(step[0]);
    const int place = nb::cast<int>(step[1]);
    if (place < 0) continue;
    const Array* other = native(others[buffers.size() - 4]);
    own.value_first = place == 0;
    own.operand = operand(other);
    buffers.push_back(address(other));
  }
  Plan plan;
  if (kernels->plan_matmul_epilogue(&plan, operand(native(out)), operand(native(a)),
                                    operand(native(b)), epilogue)) {
    return false;
  }
  run_buffers(plan, buffers, kWork * native(out)->spec->size);
  return true;
}

void extremes(nb::handle values, nb::handle positions, nb::handle x, int axis, bool largest) {
  Plan plan;
  check(kernels->plan_extremes(&plan, operand(native(values)), operand(native(x)), axis, largest),
        "extremes", native(x));
  run(plan, {native(values), native(positions), native(x)});
}

void random_bits(nb::handle out, uint64_t key, uint64_t counter) {
  Plan plan;
  check(kernels->plan_random_bits(&plan, operand(native(out)), 0), "random_bits", native(out));
  uint64_t stream[] = {key, counter};
  void* numbers = is_dry() ? table_of(stream, sizeof stream) : stream;
  if (!numbers) throw nb::python_error();
  run_buffers(plan, {address(native(out)), numbers}, kWork * native(out)->spec->size);
}

void random_bits_of(nb::handle out, nb::handle stream, uint64_t offset) {
  const Array* x = native(stream);
  check_dense(x, "random_bits");
  if (x->spec->code != kInt64 || x->spec->size != 2)
    throw nb::value_error("random_bits: expected a stream of two int64");
  Plan plan;
  check(kernels->plan_random_bits(&plan, operand(native(out)), offset), "random_bits", native(out));
  run(plan, {native(out), x});
}

// indices are broadcast to out's shape. Whether all are in range.
bool linear_index(nb::handle out, nb::sequence indices, nb::sequence sizes) {
  for (size_t i = 0; i < nb::len(indices); i++) {
    const nb::object index = indices[i];
    Plan plan;
    check(kernels->plan_linear_index(&plan, operand(native(out)), operand(native(index)),
                                     nb::cast<int64_t>(sizes[i]), i == 0),
          "index", native(index));
    if (run(plan, {native(out), native(index)}, kChecked) >= 0) return false;
  }
  return true;
}

// Bools -> int64 [axes, how many are true].
nb::object nonzero(nb::handle object) {
  const Array* x = native(object);
  Array* out = find_true(operand(x), address(x), x->spec->device);
  if (!out && !PyErr_Occurred()) raise_dtype_error("nonzero: expected dense bools, " + text_of(x));
  if (!out) throw nb::python_error();
  return nb::steal(reinterpret_cast<PyObject*>(out));
}

// ---- interpolation -----------------------------------------------------------------------------

// A matrix for an axis of the image: where the rows of it begin, and their elements. Returns how
// many they are in a row.
int64_t check_bands(const Array* first, const Array* weight, const Array* image,
                    const Array* result, int axis) {
  check_dense(first, "banded");
  check_dense(weight, "banded");
  const int64_t m = result->spec->shape[axis];
  const bool fits = first->spec->code == kInt64 && weight->spec->code == image->spec->code &&
                    weight->spec->ndim == 2 && first->spec->size == m &&
                    weight->spec->shape[0] == m;
  if (!fits) throw nb::value_error("banded: expected a start and a row of weights for each result");
  const int64_t span = weight->spec->shape[1], last = image->spec->shape[axis] - span;
  if (!is_known(first)) refuse_dry("the rows of a banded matrix depend on values");
  const auto* begin = reinterpret_cast<const int64_t*>(address(first));
  if (std::any_of(begin, begin + m, [&](int64_t i) { return i < 0 || i > last; })) {
    throw nb::value_error("banded: a row of the matrix goes beyond the axis");
  }
  return span;
}

void banded(nb::handle out, nb::handle x, nb::handle first, nb::handle weight,
            nb::handle second_first, nb::handle second_weight) {
  const Array *result = native(out), *image = native(x);
  if (result->spec->ndim != 4 || image->spec->ndim != 4) {
    throw nb::value_error("banded: expected [rows, n, width, inner]");
  }
  const Array *starts = native_or_null(second_first), *factors = native_or_null(second_weight);
  if (!starts != !factors)
    throw nb::value_error("banded: expected both starts and factors, or neither");
  const int64_t span = check_bands(native(first), native(weight), image, result, 1);
  const int64_t second_span = starts ? check_bands(starts, factors, image, result, 2) : 0;
  Plan plan;
  check(kernels->plan_banded(&plan, operand(image), operand(result), span, second_span), "banded",
        image);
  run(plan, {result, image, native(first), native(weight), starts, factors});
}

}  // namespace

void add_kernels(nb::module_& m) {
  add_kernel(m, "fill", &Kernels::plan_fill);
  add_kernel(m, "scan", &Kernels::plan_scan);
  add_kernel(m, "matmul", &Kernels::plan_matmul);
  add_kernel(m, "matmul_add", &Kernels::plan_matmul_add);
  add_kernel(m, "gather", &Kernels::plan_gather, kChecked);
  add_kernel(m, "scatter_add", &Kernels::plan_scatter_add, kChecked);
  add_kernel(m, "put", &Kernels::plan_put, kChecked);
  add_kernel(m, "check_range", &Kernels::plan_check_range, kChecked);
  add_kernel(m, "sort", &Kernels::plan_sort);
  add_kernel(m, "triangle", &Kernels::plan_triangle);
  m.def("run_fused", &run_fused);
  m.def("reduce_fused", &reduce_fused);
  m.def("matmul_epilogue", &needle::matmul_epilogue, nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg() = nb::none());
  m.def("extremes", &extremes);
  m.def("random_bits", &random_bits);
  m.def("random_bits_of", &random_bits_of);
  m.def("linear_index", &linear_index);
  m.def("nonzero", &nonzero);
  m.def("banded", &banded, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg().none());
}

}  // namespace needle
