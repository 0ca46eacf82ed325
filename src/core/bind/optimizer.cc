// Optimizer updates of many tensors at once: the formulas' programs, and the kernels of two of
// them.
#include "bind/calls.h"
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace needle {
namespace {

struct TensorList {
  std::vector<int64_t> sizes;
  std::vector<void*> pointers;
  DType dtype = kFloat32;

  // Lists of equal length, or None; the entries of each tensor become neighbours.
  explicit TensorList(std::initializer_list<nb::handle> lists) {
    const size_t n = nb::len(*lists.begin());
    for (size_t i = 0; i < n; i++) {
      const Array* first = native((*lists.begin())[i]);
      if (i == 0) dtype = first->spec->code;
      sizes.push_back(first->spec->size);
      for (const nb::handle list : lists) {
        if (list.is_none()) {
          pointers.push_back(nullptr);
          continue;
        }
        if (nb::len(list) != n) throw nb::value_error("update: lists of different lengths");
        const Array* x = native(list[i]);
        check_dense(x, "update");
        if (x->spec->size != first->spec->size || x->spec->code != dtype || dtype > kFloat64) {
          raise_dtype_error("update: sizes or dtypes differ, " + text_of(x));
        }
        pointers.push_back(address(x));
      }
    }
  }
};

// The numbers of a rule lie in memory, where a program finds those of each run.
struct Update {
  DType dtype;
  bool flag;
  int64_t tensors;
  const int64_t* sizes;
};

Update update_of(const Plan* plan) {
  Update update;
  std::memcpy(&update, plan->state, sizeof update);
  return update;
}

int64_t run_adam(const Plan* plan, void* const* buffers, void*) {
  const Update update = update_of(plan);
  const auto* x = static_cast<const double*>(buffers[0]);
  const Adam rule{x[0], x[1], x[2], x[3], x[4], update.flag, x[5], x[6]};
  kernels->adam(update.dtype, rule, update.tensors, update.sizes, buffers + 1);
  return -1;
}

int64_t run_sgd(const Plan* plan, void* const* buffers, void*) {
  const Update update = update_of(plan);
  const auto* x = static_cast<const double*>(buffers[0]);
  const Sgd rule{x[0], x[1], x[2], x[3], update.flag};
  kernels->sgd(update.dtype, rule, update.tensors, update.sizes, buffers + 1);
  return -1;
}

// Runs a kernel, or notes it. numbers: a list, or an array, float64 [count].
void run_update(Run function, const char* name, const TensorList& tensors, bool flag,
                nb::handle numbers, size_t count) {
  std::vector<double> values;
  std::vector<void*> buffers;
  if (is_array(numbers.ptr())) {
    const Array* x = native(numbers);
    check_dense(x, name);
    if (x->spec->code == kFloat64) values.resize(static_cast<size_t>(x->spec->size));
    buffers.push_back(address(x));
  } else {
    refuse_dry("an optimizer has numbers that are known now");
    values = elements<double>(numbers);
    buffers.push_back(values.data());
  }
  if (values.size() != count) throw nb::value_error("update: expected the numbers of the formula");
  const size_t n = tensors.sizes.size();
  buffers.insert(buffers.end(), tensors.pointers.begin(), tensors.pointers.end());
  const int64_t* sizes = tensors.sizes.data();
  if (is_dry()) {
    auto& kept = recorder->record->sizes;
    kept.push_back(std::make_unique<int64_t[]>(n + 1));
    sizes = std::copy(sizes, sizes + n, kept.back().get()) - n;
  }
  const Update update{tensors.dtype, flag, static_cast<int64_t>(n), sizes};
  Plan plan;
  plan.run = function;
  plan.workspace = 0;
  std::memcpy(plan.state, &update, sizeof update);
  run_buffers(plan, buffers, INT64_MAX, kSameView, name);
}

bool flag_of(nb::handle flags) {
  if (nb::len(flags) != 1) throw nb::value_error("update: expected one flag");
  return nb::cast<bool>(flags[0]);
}

void adam(nb::handle numbers, nb::handle flags, nb::handle outs, nb::handle ps, nb::handle grads,
          nb::handle ms, nb::handle vs) {
  const TensorList tensors({outs, ps, grads, ms, vs});
  run_update(run_adam, "adam", tensors, flag_of(flags), numbers, 7);
}

void sgd(nb::handle numbers, nb::handle flags, nb::handle outs, nb::handle ps, nb::handle grads,
         nb::handle velocities) {
  const TensorList tensors({outs, ps, grads, velocities});
  run_update(run_sgd, "sgd", tensors, flag_of(flags), numbers, 4);
}

// ---- programs ----------------------------------------------------------------------------------

// Runs a program for each of several tensors: lists of outs and of inputs. The elements of
// `scalars` are the inputs behind these.
void run_each(nb::handle program, nb::handle numbers, nb::handle results, nb::list outs,
              nb::list inputs, nb::handle scalars) {
  const Fused fused(program, numbers, results);
  const Array* values = native(scalars);
  check_dense(values, "run_each");
  const int64_t item = kItemSize[values->spec->code];
  if (nb::len(outs) != nb::len(inputs)) throw nb::value_error("run_each: lists of two lengths");
  for (size_t k = 0; k < nb::len(outs); k++) {
    const Array* out = native(outs[k][0]);
    std::vector<Operand> made, given;
    std::vector<void*> buffers;
    for (nb::handle x : outs[k]) {
      check_dense(native(x), "run_each");
      made.push_back(operand(native(x)));
      buffers.push_back(address(native(x)));
    }
    for (nb::handle x : inputs[k]) {
      check_dense(native(x), "run_each");
      given.push_back(operand(native(x)));
      buffers.push_back(address(native(x)));
    }
    const std::vector<int64_t> still(static_cast<size_t>(out->spec->ndim), 0);
    for (int64_t i = 0; i < values->spec->size; i++) {
      given.push_back({values->spec->code, out->spec->ndim, out->spec->shape, still.data()});
      buffers.push_back(static_cast<char*>(address(values)) + i * item);
    }
    Plan plan;
    check(kernels->plan_fused(&plan, fused.program(), made.data(), static_cast<int>(made.size()),
                              given.data(), static_cast<int>(given.size())),
          "run_each", out);
    run_buffers(plan, buffers, kWork * out->spec->size, kSameView);
  }
}

}  // namespace

void add_updates(nb::module_& m) {
  m.def("adam", &adam, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        "Adam: numbers, flags, outs, parameters, gradients, ms, vs.");
  m.def("sgd", &sgd, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg("velocities").none(),
        "Gradient descent: numbers, flags, outs, parameters, gradients, velocities or None.");
  m.def("run_each", &run_each);
}

}  // namespace needle
