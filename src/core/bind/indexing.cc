// Calls of the kernels that look for something, and of those that write to where it is.
#include "bind/calls.h"
#include "gate/gate.h"

namespace needle {
namespace {

int64_t put(nb::handle out, nb::handle index, nb::handle values, int axis) {
  Plan plan;
  check(kernels->plan_put(&plan, operand(native(out)), operand(native(index)),
                          operand(native(values)), axis),
        "put", native(values));
  return run(plan, {native(out), native(index), native(values)}, kChecked);
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

int64_t check_range(nb::handle x, int64_t low, int64_t high, int64_t kept) {
  Plan plan;
  check(kernels->plan_check_range(&plan, operand(native(x)), low, high, kept), "index", native(x));
  return run(plan, {native(x)}, kChecked);
}

// Dense bools -> int64 [axes, how many are true].
nb::object nonzero(nb::handle object) {
  const Array* x = native(object);
  Array* out = find_true(operand(x), address(x), x->spec->device);
  if (!out && !PyErr_Occurred()) raise_dtype_error("nonzero: expected dense bools, " + text_of(x));
  if (!out) throw nb::python_error();
  return nb::steal(reinterpret_cast<PyObject*>(out));
}

void triangle(nb::handle out, nb::handle x, int64_t k, bool upper) {
  Plan plan;
  check(kernels->plan_triangle(&plan, operand(native(out)), operand(native(x)), k, upper),
        "triangle", native(x));
  run(plan, {native(out), native(x)});
}

}  // namespace

void add_search_kernels(nb::module_& m) {
  m.def("put", &put);
  m.def("linear_index", &linear_index);
  m.def("check_range", &check_range);
  m.def("nonzero", &nonzero);
  m.def("triangle", &triangle);
}

}  // namespace needle
