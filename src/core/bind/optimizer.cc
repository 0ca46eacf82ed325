// Optimizer updates of many tensors at once.
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

  // Lists of equal length; the entries of each tensor become neighbours.
  explicit TensorList(std::initializer_list<nb::list> lists, size_t columns) {
    const size_t n = nb::len(*lists.begin());
    for (const nb::list& list : lists) {
      if (nb::len(list) != n) throw nb::value_error("update: lists of different lengths");
    }
    for (size_t i = 0; i < n; i++) {
      const Array* first = native((*lists.begin())[i]);
      if (i == 0) dtype = first->spec->code;
      sizes.push_back(first->spec->size);
      for (const nb::list& list : lists) {
        const Array* x = native(list[i]);
        check_dense(x, "update");
        if (x->spec->size != first->spec->size || x->spec->code != dtype || dtype > kFloat64) {
          raise_dtype_error("update: sizes or dtypes differ, " + text_of(x));
        }
        pointers.push_back(address(x));
      }
      pointers.resize((i + 1) * columns, nullptr);
    }
  }
};

// The numbers of a rule lie in memory, where a program finds those of each run.
struct Update {
  DType dtype;
  bool flags[2];
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
  const Adam rule{x[0], x[1], x[2], x[3], x[4], update.flags[0], x[5], x[6]};
  kernels->adam(update.dtype, rule, update.tensors, update.sizes, buffers + 1);
  return -1;
}

int64_t run_sgd(const Plan* plan, void* const* buffers, void*) {
  const Update update = update_of(plan);
  const auto* x = static_cast<const double*>(buffers[0]);
  const Sgd rule{x[0], x[1], x[2], x[3], update.flags[0], update.flags[1]};
  kernels->sgd(update.dtype, rule, update.tensors, update.sizes, buffers + 1);
  return -1;
}

void run_update(Run function, const char* name, const TensorList& tensors, Update update,
                nb::handle numbers, int64_t count) {
  const Array* x = native(numbers);
  check_dense(x, name);
  if (x->spec->code != kFloat64 || x->spec->size != count)
    throw nb::value_error("update: expected the numbers of the rule, float64");
  const size_t n = tensors.sizes.size();
  std::vector<void*> buffers{address(x)};
  buffers.insert(buffers.end(), tensors.pointers.begin(), tensors.pointers.end());
  const int64_t* sizes = tensors.sizes.data();
  if (is_dry()) {
    auto& kept = recorder->record->sizes;
    kept.push_back(std::make_unique<int64_t[]>(n + 1));
    sizes = std::copy(sizes, sizes + n, kept.back().get()) - n;
  }
  Plan plan;
  plan.run = function;
  plan.workspace = 0;
  update.dtype = tensors.dtype;
  update.tensors = static_cast<int64_t>(n);
  update.sizes = sizes;
  std::memcpy(plan.state, &update, sizeof update);
  if (noted(plan, buffers, kSameView, name)) return;
  const Released released;
  function(&plan, buffers.data(), nullptr);
}

void adam_by(nb::list outs, nb::list ps, nb::list grads, nb::list ms, nb::list vs, bool decoupled,
             nb::handle numbers) {
  const Update update = {kFloat32, {decoupled, false}, 0, nullptr};
  run_update(run_adam, "adam", TensorList({outs, ps, grads, ms, vs}, 5), update, numbers, 7);
}

void sgd_by(nb::list outs, nb::list ps, nb::list grads, nb::object velocities, bool nesterov,
            bool first, nb::handle numbers) {
  const Update update = {kFloat32, {nesterov, first}, 0, nullptr};
  const TensorList tensors = velocities.is_none()
                                 ? TensorList({outs, ps, grads}, 4)
                                 : TensorList({outs, ps, grads, nb::cast<nb::list>(velocities)}, 4);
  run_update(run_sgd, "sgd", tensors, update, numbers, 4);
}

void adam(nb::list outs, nb::list ps, nb::list grads, nb::list ms, nb::list vs, double lr,
          double beta1, double beta2, double eps, double weight_decay, bool decoupled,
          double correction1, double correction2) {
  refuse_dry("an optimizer has numbers that are known now");
  TensorList tensors({outs, ps, grads, ms, vs}, 5);
  const Adam rule{lr, beta1, beta2, eps, weight_decay, decoupled, correction1, correction2};
  const Released released;
  kernels->adam(tensors.dtype, rule, static_cast<int64_t>(tensors.sizes.size()),
                tensors.sizes.data(), tensors.pointers.data());
}

void sgd(nb::list outs, nb::list ps, nb::list grads, nb::object velocities, double lr,
         double momentum, double dampening, double weight_decay, bool nesterov, bool first) {
  refuse_dry("an optimizer has numbers that are known now");
  const bool has_velocity = !velocities.is_none();
  TensorList tensors = has_velocity
                           ? TensorList({outs, ps, grads, nb::cast<nb::list>(velocities)}, 4)
                           : TensorList({outs, ps, grads}, 4);
  const Sgd rule{lr, momentum, dampening, weight_decay, nesterov, first};
  const Released released;
  kernels->sgd(tensors.dtype, rule, static_cast<int64_t>(tensors.sizes.size()),
               tensors.sizes.data(), tensors.pointers.data());
}

}  // namespace

void add_updates(nb::module_& m) {
  m.def("adam", &adam);
  m.def("sgd", &sgd, nb::arg("outs"), nb::arg("ps"), nb::arg("grads"), nb::arg("velocities").none(),
        nb::arg("lr"), nb::arg("momentum"), nb::arg("dampening"), nb::arg("weight_decay"),
        nb::arg("nesterov"), nb::arg("first"));
  m.def("adam_by", &adam_by, "Adam by numbers in memory: those of its rule, float64.");
  m.def("sgd_by", &sgd_by, nb::arg("outs"), nb::arg("ps"), nb::arg("grads"),
        nb::arg("velocities").none(), nb::arg("nesterov"), nb::arg("first"), nb::arg("numbers"),
        "The same of gradient descent.");
}

}  // namespace needle
