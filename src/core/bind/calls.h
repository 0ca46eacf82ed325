// Calls of kernels from Python: code that all bindings share.
#pragma once
#include "gate/gate.h"
#include <nanobind/nanobind.h>
#include <string>
#include <tuple>
#include <vector>

namespace nb = nanobind;

namespace needle {

constexpr int64_t kWork = 16;  // what an element counts, compared with a sum

[[noreturn]] inline void raise_dtype_error(const std::string& message) {
  nb::object error = nb::module_::import_("needle.errors").attr("DtypeError");
  PyErr_SetString(error.ptr(), message.c_str());
  throw nb::python_error();
}

inline Array* native(nb::handle x) {
  if (!is_array(x.ptr()) || !reinterpret_cast<Array*>(x.ptr())->storage) {
    throw nb::type_error("expected an array of the native CPU");
  }
  return reinterpret_cast<Array*>(x.ptr());
}

inline Array* native_or_null(nb::handle x) { return x.is_none() ? nullptr : native(x); }

inline std::string text_of(const Array* x) {
  return nb::str(nb::handle(reinterpret_cast<PyObject*>(x->spec))).c_str();
}

inline void check(const char* refused, const char* operation, const Array* x) {
  if (refused) raise_dtype_error(std::string(operation) + ": " + refused + ", " + text_of(x));
}

inline void check_dense(const Array* x, const char* operation) {
  if (x->strides) throw nb::value_error((std::string(operation) + ": needs dense arrays").c_str());
}

// The elements of a list or tuple. (nanobind would fill a vector of parameters where no exception
// can pass, and end the process if there is no memory for it.)
template <class T>
std::vector<T> elements(nb::handle source) {
  std::vector<T> found;
  for (nb::handle x : source) found.push_back(nb::cast<T>(x));
  return found;
}

inline void refuse_dry(const char* why) {
  if (!is_dry()) return;
  raise_not_recorded(why);
  throw nb::python_error();
}

// Runs a kernel, or notes it; -1, or the position of what is wrong. Arguments keep the arrays
// alive.
inline int64_t run_buffers(const Plan& plan, const std::vector<void*>& buffers, int64_t elements,
                           int32_t traits = 0, const char* name = nullptr) {
  const auto n = static_cast<int64_t>(buffers.size());
  const int64_t found = run_kernel(plan, buffers.data(), n, elements, traits, name);
  if (found == kFailed) throw nb::python_error();
  return found;
}

inline int64_t run(const Plan& plan, const std::vector<const Array*>& arrays, int32_t traits = 0) {
  std::vector<void*> buffers;
  int64_t size = 0;
  for (const Array* x : arrays) {
    buffers.push_back(x ? address(x) : nullptr);
    if (x && x->spec->size > size) size = x->spec->size;
  }
  return run_buffers(plan, buffers, kWork * size, traits);
}

// What Python passes for a parameter of a planning function: an array for an operand.
template <class P>
constexpr bool is_operand = std::is_same_v<P, const Operand&>;
template <class P>
using Argument = std::conditional_t<is_operand<P>, nb::handle, P>;

template <class P>
auto planned(Argument<P> x, std::vector<const Array*>* arrays) {
  if constexpr (is_operand<P>) return arrays->push_back(native(x)), operand(arrays->back());
  if constexpr (!is_operand<P>) return x;
}

// A function for Python of a kernel whose buffers are the operands, in their order.
template <class... P>
void add_kernel(nb::module_& m, const char* name, const char* (*Kernels::*make)(Plan*, P...),
                int32_t traits = 0) {
  m.def(name, [=](Argument<P>... given) {
    Plan plan;
    std::vector<const Array*> arrays;
    const std::tuple parameters{planned<P>(given, &arrays)...};  // in order
    const auto made = [&](const auto&... x) { return (kernels->*make)(&plan, x...); };
    check(std::apply(made, parameters), name, arrays.back());
    return run(plan, arrays, traits);
  });
}

// A fused program from Python: instructions (function, registers), numbers (value, code of a
// dtype), and the registers of the results.
class Fused {
 public:
  Fused(nb::handle steps, nb::handle numbers, nb::handle results) {
    for (nb::handle step : steps) {
      Instruction instruction{nb::cast<int>(step[0]), {0, 0, 0}};
      int i = 0;
      for (nb::handle argument : step[1]) instruction.args[i++] = nb::cast<int16_t>(argument);
      code_.push_back(instruction);
    }
    for (nb::handle x : numbers)
      numbers_.push_back({nb::cast<double>(x[0]), static_cast<DType>(nb::cast<int>(x[1]))});
    for (nb::handle r : results) results_.push_back(nb::cast<int16_t>(r));
  }
  FusedProgram program() const {
    return {code_.data(), static_cast<int32_t>(code_.size()), numbers_.data(),
            static_cast<int32_t>(numbers_.size()), results_.data()};
  }

 private:
  std::vector<Instruction> code_;
  std::vector<Number> numbers_;
  std::vector<int16_t> results_;
};

// Bindings of other files.
void add_kernels(nb::module_& m);
void add_batch_kernels(nb::module_& m);
void add_sequence_kernels(nb::module_& m);
void add_updates(nb::module_& m);
void add_programs(nb::module_& m);
void add_shortcuts(nb::module_& m);

}  // namespace needle
