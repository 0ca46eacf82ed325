// Steps on the host: Python code computes them in each run, from copies of their inputs, so that
// nothing of it can reach the memory of the program, which others use later.
#include "gate/gate.h"
#include "program/record.h"
#include <algorithm>
#include <cstring>
#include <new>

namespace needle {
namespace {

// The GIL while it lives, whether or not the thread had it; as Released where the interpreter ends.
class Held {
 public:
  Held() {
    try {
      state_ = PyGILState_Ensure();
    } catch (...) {
      for (;;) pause();
    }
  }
  ~Held() { PyGILState_Release(state_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  PyGILState_STATE state_;
};

// An array with the layout and the values of one in the program; null with an exception.
Array* copied(const HostStep::Operand& x, const void* buffer) {
  const int64_t item = kItemSize[x.spec->code];
  int64_t low = 0, high = 0;
  for (int i = 0; x.spec->size && i < x.spec->ndim; i++) {
    const int64_t reach = (x.spec->shape[i] - 1) * x.strides[i];
    (reach < 0 ? low : high) += reach;
  }
  const int64_t nbytes = x.spec->size ? (high - low + 1) * item : 0;
  Storage* storage = storage_new(nbytes);
  if (!storage) return nullptr;
  std::memcpy(storage->data, static_cast<const char*>(buffer) + low * item,
              static_cast<size_t>(nbytes));
  Py_INCREF(x.spec);
  return array_new(x.spec, storage, -low, x.is_dense ? nullptr : x.strides);
}

PyObject* inputs_of(const HostStep& step, void* const* buffers) {
  PyObject* inputs = PyTuple_New(static_cast<Py_ssize_t>(step.inputs.size()));
  for (size_t i = 0; inputs && i < step.inputs.size(); i++) {
    auto* x = reinterpret_cast<PyObject*>(copied(step.inputs[i], buffers[i]));
    if (x) {
      PyTuple_SET_ITEM(inputs, static_cast<Py_ssize_t>(i), x);
    } else {
      Py_CLEAR(inputs);
    }
  }
  return inputs;
}

// Writes a result into the program's memory; false with an exception.
bool take(PyObject* found, const Spec* spec, void* buffer) {
  auto* x = is_array(found) ? reinterpret_cast<Array*>(found) : nullptr;
  if (!x || !x->storage || x->spec != spec) {
    PyErr_Format(PyExc_TypeError, "compile: an op gives %R, expected %R",
                 x ? reinterpret_cast<const PyObject*>(x->spec) : found, spec);
    return false;
  }
  Array* dense = copy_of(x, spec->code, false);
  if (!dense) return false;
  std::memcpy(buffer, address(dense), static_cast<size_t>(spec->size * kItemSize[spec->code]));
  Py_DECREF(dense);
  return true;
}

bool compute(const HostStep& step, void* const* buffers) {
  const size_t n = step.results.size();
  PyObject* inputs = inputs_of(step, buffers + n);
  PyObject* found = inputs ? PyObject_CallObject(step.function, inputs) : nullptr;
  Py_XDECREF(inputs);
  PyObject* parts = found ? PySequence_Tuple(found) : nullptr;
  Py_XDECREF(found);
  bool is_done = parts;
  if (is_done && PyTuple_GET_SIZE(parts) != static_cast<Py_ssize_t>(n)) {
    PyErr_Format(PyExc_TypeError, "compile: an op gives %zd results, expected %zu",
                 PyTuple_GET_SIZE(parts), n);
    is_done = false;
  }
  for (size_t i = 0; is_done && i < n; i++) {
    is_done =
        take(PyTuple_GET_ITEM(parts, static_cast<Py_ssize_t>(i)), step.results[i], buffers[i]);
  }
  Py_XDECREF(parts);
  return is_done;
}

int64_t run_host(const Plan* plan, void* const* buffers, void*) {
  const HostStep* step;
  std::memcpy(&step, plan->state, sizeof step);
  const Held held;
  return compute(*step, buffers) ? -1 : 0;
}

// What a node noted before it asked for values.
void drop_steps(Recorder* r) {
  auto& steps = r->record->steps;
  while (!steps.empty() && steps.back().node == r->node) {
    r->record->places.resize(steps.back().first);
    steps.pop_back();
  }
}

}  // namespace

HostStep::~HostStep() {
  Py_XDECREF(function);
  for (Operand& x : inputs) Py_DECREF(x.spec);
  for (Spec* spec : results) Py_DECREF(spec);
}

bool note_host(PyObject* function, const std::vector<Array*>& inputs,
               const std::vector<Array*>& results) {
  try {
    drop_steps(recorder);
    recorder->record->hosts.emplace_back();
    HostStep& step = recorder->record->hosts.back();
    Py_INCREF(step.function = function);
    std::vector<void*> buffers;
    for (const Array* x : results) {
      buffers.push_back(address(x));
      step.results.push_back(x->spec);
      Py_INCREF(x->spec);
    }
    for (const Array* x : inputs) {
      buffers.push_back(address(x));
      step.inputs.push_back({x->spec, !x->strides, {}});
      std::copy_n(strides_of(x), x->spec->ndim, step.inputs.back().strides);
      Py_INCREF(x->spec);
    }
    Plan plan;
    plan.run = run_host;
    plan.workspace = 0;
    const HostStep* place = &step;
    std::memcpy(plan.state, &place, sizeof place);
    return note(plan, buffers.data(), static_cast<int64_t>(buffers.size()), kChecked | kOnHost,
                "on the host");
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return false;
  }
}

}  // namespace needle
