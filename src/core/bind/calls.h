// Calls of kernels from Python: code that all bindings share.
#pragma once
#include "types/core.h"
#include "program/record.h"
#include <nanobind/nanobind.h>
#include <string>
#include <vector>

namespace nb = nanobind;

namespace needle {

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

inline void* workspace_of(const Plan& plan) {
  void* scratch = plan.workspace ? workspace(plan.workspace) : nullptr;
  if (plan.workspace && !scratch) throw nb::python_error();
  return scratch;
}

inline void refuse_dry(const char* why) {
  if (!is_dry()) return;
  raise_not_recorded(why);
  throw nb::python_error();
}

// Whether this is a dry run, which only notes the kernel.
inline bool noted(const Plan& plan, const std::vector<void*>& buffers, int32_t traits,
                  const char* name = nullptr) {
  if (!is_dry()) return false;
  const auto n = static_cast<int64_t>(buffers.size());
  if (!note(plan, buffers.data(), n, traits, name)) throw nb::python_error();
  return true;
}

// Arguments keep the arrays alive; the GIL is free while a kernel runs that may take long.
inline int64_t run(const Plan& plan, std::initializer_list<const Array*> arrays,
                   int32_t traits = 0) {
  constexpr int64_t kFew = 1 << 12;  // elements
  std::vector<void*> buffers;
  int64_t size = 0;
  for (const Array* x : arrays) {
    buffers.push_back(x ? address(x) : nullptr);
    if (x && x->spec->size > size) size = x->spec->size;
  }
  if (noted(plan, buffers, traits)) return -1;
  void* scratch = workspace_of(plan);
  if (size <= kFew) return plan.run(&plan, buffers.data(), scratch);
  const Released released;
  return plan.run(&plan, buffers.data(), scratch);
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
void add_image_kernels(nb::module_& m);
void add_batch_kernels(nb::module_& m);
void add_search_kernels(nb::module_& m);
void add_sequence_kernels(nb::module_& m);
void add_updates(nb::module_& m);
void add_programs(nb::module_& m);
void add_shortcuts(nb::module_& m);

}  // namespace needle
