// Results of ops on native arrays, for the common cases, without tensors, graph or Python.
#include "gate/gate.h"
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace needle {

constexpr int64_t kRelease = 1 << 16;  // elements from which on other Python threads may run

int64_t run_kernel(const Plan& plan, void* const* buffers, int64_t n, int64_t elements,
                   int32_t traits, const char* name) {
  if (is_dry()) return note(plan, buffers, n, traits, name) ? -1 : kFailed;
  void* scratch = plan.workspace ? workspace(plan.workspace) : nullptr;
  if (plan.workspace && !scratch) return kFailed;
  if (elements < kRelease) return plan.run(&plan, buffers, scratch);
  const Released released;
  return plan.run(&plan, buffers, scratch);
}

bool run_plan(const Plan& plan, void* const* buffers, int n, int64_t elements, int32_t traits) {
  const int64_t found = run_kernel(plan, buffers, n, elements, traits, nullptr);
  return found == -1 || (found >= 0 && !(traits & kChecked));
}

namespace {

// The shape that all axes but the last ones broadcast to, of which `rest` are left out.
bool broadcast_shape(Array* const* x, int n, int rest, int* ndim, int64_t* shape) {
  *ndim = 0;
  for (int k = 0; k < n; k++) *ndim = std::max(*ndim, x[k]->spec->ndim - rest);
  for (int i = 0; i < *ndim; i++) {
    int64_t size = 1;
    for (int k = 0; k < n; k++) {
      const int j = i - (*ndim - (x[k]->spec->ndim - rest));
      const int64_t own = j < 0 ? 1 : x[k]->spec->shape[j];
      if (own == 1 || own == size) continue;
      if (size != 1) return false;
      size = own;
    }
    shape[i] = size;
  }
  return true;
}

// Dense strides in the memory order of the first operand of full shape. False: C order.
bool kept_order(Array* const* x, int n, const Spec* spec, int64_t* strides) {
  for (int k = 0; k < n; k++) {
    if (x[k]->spec->ndim != spec->ndim ||
        std::memcmp(x[k]->spec->shape, spec->shape, spec->ndim * sizeof(int64_t)) != 0) {
      continue;
    }
    if (!x[k]->strides) return false;
    int order[kMaxDims];
    for (int i = 0; i < spec->ndim; i++) {
      const int64_t stride = x[k]->strides[i];
      if (stride == 0) break;
      int j = i;
      for (; j > 0 && std::abs(x[k]->strides[order[j - 1]]) < std::abs(stride); j--) {
        order[j] = order[j - 1];
      }
      order[j] = i;
      if (i + 1 < spec->ndim) continue;
      int64_t step = 1;
      for (int p = spec->ndim - 1; p >= 0; p--) {
        strides[order[p]] = step;
        step *= spec->shape[order[p]];
      }
      return true;
    }
  }
  return false;
}

}  // namespace

bool lay_out(Layout* out, DType type, Array* const* x, int n, bool in_order) {
  int ndim;
  int64_t shape[kMaxDims];
  if (!broadcast_shape(x, n, 0, &ndim, shape)) return false;
  out->spec = spec_of(type, x[0]->spec->device, ndim, shape);
  out->reordered = out->spec && in_order && kept_order(x, n, out->spec, out->strides);
  return out->spec;
}

namespace {

Operand operand(const Layout& x) {
  return {x.spec->code, x.spec->ndim, x.spec->shape, x.reordered ? x.strides : x.spec->strides};
}

Array* new_array(const Layout& out) {
  Storage* storage = storage_new(out.spec->size * kItemSize[out.spec->code]);
  if (!storage) return nullptr;
  Py_INCREF(out.spec);
  return array_new(out.spec, storage, 0, out.order());
}

constexpr uint32_t FLOATS = 0xF, INTEGERS = 0x1F0, NUMBERS = FLOATS | INTEGERS;
constexpr uint32_t INTEGRAL = INTEGERS | 1 << kBool, ALL = NUMBERS | 1 << kBool;
static_assert(kFloat16 == 3 && kUInt8 == 8 && kBool == 9);

struct Row {
  int n;
  uint32_t dtypes;
};
constexpr Row rows[] = {
#define UNARY(name, dtypes, ...) {1, dtypes},
#define BINARY(name, dtypes, ...) {2, dtypes},
#define TERNARY(name, dtypes, ...) {3, dtypes},
#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY
};

}  // namespace

bool fits(int32_t code, bool to_bool, Array* const* x, int n) {
  const int first = code == k_where;  // after the condition
  if (n != rows[code].n || (first && (x[0]->spec->code != kBool || to_bool))) return false;
  const DType type = x[n - 1]->spec->code;
  for (int k = first; k < n; k++) {
    if (x[k]->spec->code != type) return false;
  }
  for (int k = 1; k < n; k++) {
    if (x[k]->spec->device != x[0]->spec->device) return false;
  }
  return rows[code].dtypes >> type & 1;
}

namespace {

// The description of elementwise work on operands of any shapes and strides.
struct Broadcast {
  int32_t code;
  DType out_type;
  int n;
  Spec* in[kMaxArgs];
  Layout out;
  Plan plan;
};

bool plan_broadcast(Broadcast* plan, Array* const* x) {
  int64_t strides[kMaxArgs][kMaxDims];
  if (!lay_out(&plan->out, plan->out_type, x, plan->n)) return false;
  const Spec* out = plan->out.spec;
  Operand operands[kMaxArgs];
  for (int k = 0; k < plan->n; k++) {
    broadcast_strides(x[k], out->ndim, out->shape, strides[k]);
    operands[k] = {x[k]->spec->code, out->ndim, out->shape, strides[k]};
  }
  const Operand result = operand(plan->out);
  if (!kernels->plan_elementwise(&plan->plan, plan->code, result, operands, plan->n)) return true;
  Py_CLEAR(plan->out.spec);
  return false;
}

uint64_t replaced;  // how many kept plans gave way to others

Array* run_broadcast(const Broadcast& plan, Array* const* x) {
  const uint64_t before = replaced;
  Array* out = new_array(plan.out);
  if (!out) return nullptr;
  if (replaced != before) {  // a new object lets the collector run, and with it any Python
    Py_DECREF(out);
    return nullptr;
  }
  void* buffers[kMaxArgs + 1] = {out->storage->data};
  bool same = !plan.out.reordered;
  for (int k = 0; k < plan.n; k++) {
    buffers[k + 1] = address(x[k]);
    same &= !x[k]->strides && (x[k]->spec == out->spec || x[k]->spec->size != out->spec->size);
  }
  const int32_t traits = same ? kSameView : 0;
  if (run_plan(plan.plan, buffers, plan.n + 1, out->spec->size, traits)) return out;
  Py_DECREF(out);
  return nullptr;
}

// Small work on dense operands comes again and again, and planning it costs more than doing it:
// the last plans, by function and specs. They run with the GIL held, so nobody replaces one.
Broadcast recent[64];

void forget(Broadcast* known) {
  if (!known->out.spec) return;
  for (int k = 0; k < known->n; k++) Py_DECREF(known->in[k]);
  Py_CLEAR(known->out.spec);
}

Array* elementwise_strided(int32_t code, DType out_type, Array* const* x, int n) {
  bool dense = true;
  size_t hash = code;
  for (int k = 0; k < n; k++) {
    dense &= !x[k]->strides && x[k]->spec->size < kRelease;
    hash = (hash ^ reinterpret_cast<size_t>(x[k]->spec) >> 4) * 0x9E3779B97F4A7C15;
  }
  Broadcast* known = &recent[hash >> 58];
  bool hit = dense && known->out.spec && known->code == code && known->out_type == out_type &&
             known->n == n;
  for (int k = 0; k < n; k++) hit = hit && known->in[k] == x[k]->spec;
  if (hit) return run_broadcast(*known, x);
  Broadcast plan;
  plan.code = code;
  plan.out_type = out_type;
  plan.n = n;
  if (!plan_broadcast(&plan, x)) return nullptr;
  Array* out = run_broadcast(plan, x);
  if (!dense || plan.out.spec->size >= kRelease) {
    Py_DECREF(plan.out.spec);
    return out;
  }
  replaced++;
  std::swap(*known, plan);
  for (int k = 0; k < n; k++) Py_INCREF(known->in[k] = x[k]->spec);
  forget(&plan);
  return out;
}

// A loop over contiguous operands, as a plan.
struct Loop {
  Contiguous function;
  int64_t n;
};

int64_t run_loop(const Plan* plan, void* const* buffers, void*) {
  Loop loop;
  std::memcpy(&loop, plan->state, sizeof loop);
  loop.function(buffers[0], buffers + 1, loop.n);
  return -1;
}

Array* note_loop(Contiguous function, Array* out, const void* const* inputs, int n) {
  const Loop loop = {function, out->spec->size};
  Plan plan;
  plan.run = run_loop;
  plan.workspace = 0;
  std::memcpy(plan.state, &loop, sizeof loop);
  void* buffers[kMaxArgs + 1] = {out->storage->data};
  for (int k = 0; k < n; k++) buffers[k + 1] = const_cast<void*>(inputs[k]);
  if (note(plan, buffers, n + 1, kSameView, "loop")) return out;
  Py_DECREF(out);
  return nullptr;
}

}  // namespace

Array* elementwise_result(int32_t code, bool to_bool, Array* const* x, int n) {
  if (!x[0]->storage) return elementwise_elsewhere(code, to_bool, x, n);
  if (!fits(code, to_bool, x, n)) return nullptr;
  Spec* spec = x[n - 1]->spec;
  bool same = code != k_where;
  for (int k = 0; k < n; k++) same &= x[k]->spec == spec && !x[k]->strides;
  const DType out_type = to_bool ? kBool : spec->code;
  const bool plain = same && spec->size <= 4096;
  const Contiguous loop = plain ? kernels->contiguous(code, spec->code, out_type) : nullptr;
  if (!loop) return elementwise_strided(code, out_type, x, n);
  Spec* out_spec = spec;
  if (to_bool) {
    out_spec = spec_of(kBool, spec->device, spec->ndim, spec->shape);
    if (!out_spec) return nullptr;
  }
  Array* out = array_empty(out_spec);
  if (to_bool) Py_DECREF(out_spec);
  if (!out) return nullptr;
  const void* inputs[kMaxArgs];
  for (int k = 0; k < n; k++) inputs[k] = address(x[k]);
  if (is_dry()) return note_loop(loop, out, inputs, n);
  loop(out->storage->data, inputs, spec->size);
  return out;
}

bool elementwise_into(Array* out, int32_t code, Array* const* x, int n) {
  if (n != rows[code].n) return false;
  Operand operands[kMaxArgs];
  void* buffers[kMaxArgs + 1] = {address(out)};
  for (int k = 0; k < n; k++) {
    operands[k] = operand(x[k]);
    buffers[k + 1] = address(x[k]);
  }
  Plan plan;
  return !kernels->plan_elementwise(&plan, code, operand(out), operands, n) &&
         run_plan(plan, buffers, n + 1, out->spec->size, 0);
}

bool copy_into(Array* out, const Array* x) {
  Plan plan;
  void* buffers[2] = {address(out), address(x)};
  return !kernels->plan_copy(&plan, operand(out), operand(x)) &&
         run_plan(plan, buffers, x->spec->size);
}

Array* copy_of(Array* x, DType type, bool in_order) {
  if (!x->storage) return copy_elsewhere(x, type, in_order);
  Layout to;
  if (!lay_out(&to, type, &x, 1, in_order)) return nullptr;
  Plan plan;
  Array* made = kernels->plan_copy(&plan, operand(to), operand(x)) ? nullptr : new_array(to);
  Py_DECREF(to.spec);
  if (!made) return nullptr;
  void* buffers[2] = {made->storage->data, address(x)};
  const bool plain = type == x->spec->code && !x->strides && !to.reordered;
  if (run_plan(plan, buffers, x->spec->size, plain ? kSameView | kCopies : 0)) return made;
  Py_DECREF(made);
  return nullptr;
}

// The dtype of a reduction, as backend/kernels.py has it.
DType reduced_type(int32_t reduction, DType type) {
  switch (reduction) {
    case kAny:
    case kAll:
      return kBool;
    case kArgMax:
    case kArgMin:
      return kInt64;
    case kSum:
    case kProd:
      return type > kFloat16 ? kInt64 : type;
    default:
      return type;
  }
}

bool reduce_into(Array* out, int32_t reduction, uint32_t axes, const Array* x, double factor) {
  const Spec* in = x->spec;
  int64_t kept[kMaxDims], strides[kMaxDims], step = 1;
  for (int i = in->ndim - 1; i >= 0; i--) {
    kept[i] = axes >> i & 1 ? 1 : in->shape[i];
    strides[i] = step;
    step *= kept[i];
  }
  if (out->strides || out->spec->size != step) return false;
  Plan plan;
  void* buffers[2] = {address(out), address(x)};
  return !kernels->plan_reduce(&plan, reduction, {out->spec->code, in->ndim, kept, strides},
                               operand(x), axes, factor) &&
         run_plan(plan, buffers, in->size);
}

namespace {

// Reduce over `axes` of x into a dense array of the given shape, of the same number of elements
// as x's shape without those axes.
Array* reduce(int32_t reduction, uint32_t axes, const Array* x, int ndim, const int64_t* shape,
              double factor = 1.0) {
  if (!x->storage) return reduce_elsewhere(reduction, axes, x, ndim, shape);
  Array* out = array_empty(reduced_type(reduction, x->spec->code), x->spec->device, ndim, shape);
  if (out && !reduce_into(out, reduction, axes, x, factor)) Py_CLEAR(out);
  return out;
}

// Whether the definition has something to say: about positions along several axes, the largest of
// nothing, means of integers.
bool reduces_plainly(int32_t reduction, uint32_t axes, const Spec* in) {
  if (axes >> in->ndim) return false;
  const bool position = reduction == kArgMax || reduction == kArgMin;
  if (reduction == kVariance) return in->code <= kFloat16 && in->size > 0;
  if (reduction > kVariance) return in->code <= kFloat64 && in->size > 0;
  if (position && axes + 1 != 1u << in->ndim && (!axes || axes & (axes - 1))) return false;
  if (position || reduction == kMax || reduction == kMin) return in->size > 0;
  return reduction != kMean || in->code <= kFloat16;
}

}  // namespace

Array* reduction_result(int32_t reduction, uint32_t axes, bool keepdims, const Array* x,
                        double correction) {
  const Spec* in = x->spec;
  if (!reduces_plainly(reduction, axes, in)) return nullptr;
  if (reduction >= kVariance && !x->storage) return nullptr;
  int64_t shape[kMaxDims], count = 1;
  int ndim = 0;
  for (int i = 0; i < in->ndim; i++) {
    const bool reduced = axes >> i & 1;
    if (reduced) count *= in->shape[i];
    if (!reduced || keepdims) shape[ndim++] = reduced ? 1 : in->shape[i];
  }
  const double room = static_cast<double>(count) - correction;
  const double factor = room > 0 ? 1.0 / room : std::numeric_limits<double>::infinity();
  return reduce(reduction, axes, x, ndim, shape, factor);
}

namespace {

// The transpose of a broadcast from the shape in params.
Array* sum_to(const Op* op, const Array* x) {
  const int lead = x->spec->ndim - op->n_params;
  if (lead < 0 || x->spec->code > kFloat16) return nullptr;
  uint32_t axes = (1u << lead) - 1;
  for (int i = 0; i < op->n_params; i++) {
    if (op->params[i] == x->spec->shape[i + lead]) continue;
    if (op->params[i] != 1) return nullptr;
    axes |= 1u << (i + lead);
  }
  return reduce(kSum, axes, x, op->n_params, op->params);
}

}  // namespace

bool fit(Product* p, Array* const* x) {
  const Spec *left = x[0]->spec, *right = x[1]->spec;
  if (left->code != right->code || left->ndim < 2 || right->ndim < 2) return false;
  if (left->shape[left->ndim - 1] != right->shape[right->ndim - 2]) return false;
  if (!broadcast_shape(x, 2, 2, &p->ndim, p->shape)) return false;
  p->ndim += 2;
  for (int k = 0; k < 2; k++) {
    const Spec* spec = x[k]->spec;
    std::copy_n(p->shape, p->ndim - 2, p->sizes[k]);
    std::copy_n(spec->shape + spec->ndim - 2, 2, p->sizes[k] + p->ndim - 2);
    broadcast_strides(x[k], p->ndim, p->sizes[k], p->strides[k]);
  }
  p->shape[p->ndim - 2] = p->sizes[0][p->ndim - 2];
  p->shape[p->ndim - 1] = p->sizes[1][p->ndim - 1];
  return true;
}

namespace {

// A product, and the sum of it and a row, if there is one: null, or x[2].
const char* plan_product(Plan* plan, const Product& p, const Spec* out, const Array* row) {
  const DType code = out->code;
  const Operand result = {code, p.ndim, p.shape, out->strides};
  const Operand a = {code, p.ndim, p.sizes[0], p.strides[0]};
  const Operand b = {code, p.ndim, p.sizes[1], p.strides[1]};
  if (!row) return kernels->plan_matmul(plan, result, a, b);
  int64_t strides[kMaxDims];
  broadcast_strides(row, p.ndim, p.shape, strides);
  const Epilogue epilogue = {1, -1, {{k_add, true, {row->spec->code, p.ndim, p.shape, strides}}}};
  return kernels->plan_matmul_epilogue(plan, result, a, b, epilogue);
}

Array* matmul(Array* const* x, const Array* row) {
  if (!x[0]->storage) return matmul_elsewhere(x);
  Product p;
  if (!fit(&p, x)) return nullptr;
  const DType code = x[0]->spec->code;
  const int64_t inner = p.sizes[0][p.ndim - 1];
  if (inner == 1 && code <= kFloat16)
    return row ? nullptr : elementwise_result(k_multiply, false, x, 2);
  Spec* spec = spec_of(code, x[0]->spec->device, p.ndim, p.shape);
  if (!spec) return nullptr;
  Plan plan;
  Array* out = plan_product(&plan, p, spec, row) ? nullptr : array_empty(spec);
  Py_DECREF(spec);
  if (!out) return nullptr;
  void* buffers[5] = {out->storage->data, address(x[0]), address(x[1]), nullptr,
                      row ? address(row) : nullptr};
  if (run_plan(plan, buffers, row ? 5 : 3, out->spec->size * inner / 16, 0)) return out;
  Py_DECREF(out);
  return nullptr;
}

// x[0] @ x[1] + x[2], a row [n] or [1, n].
Array* matmul_bias(Array* const* x) {
  const Spec *right = x[1]->spec, *row = x[2]->spec;
  if (right->ndim < 2 || row->ndim < 1 || row->ndim > 2) return nullptr;
  if (row->size != row->shape[row->ndim - 1] || row->size != right->shape[right->ndim - 1])
    return nullptr;
  Array* out = x[0]->storage ? matmul(x, x[2]) : nullptr;
  if (out || PyErr_Occurred()) return out;
  Array* terms[2] = {matmul(x, nullptr), x[2]};
  if (terms[0]) out = elementwise_result(k_add, false, terms, 2);
  Py_XDECREF(terms[0]);
  return out;
}

}  // namespace

void forget_plans() {
  replaced++;
  for (Broadcast& known : recent) forget(&known);
}

Array* compute(const Op* op, Array* const* x, int n) {
  switch (op->kind) {
    case kElementwise:
      if (op->params[1] && n > 0 && x[n - 1]->spec->code > kFloat16) return nullptr;
      return elementwise_result(op->code, op->params[0], x, n);
    case kMatMul:
      return n == 2 ? matmul(x, nullptr) : n == 3 ? matmul_bias(x) : nullptr;
    default:
      break;
  }
  if (n != 1) return nullptr;
  switch (op->kind) {
    case kCast:
      return copy_of(x[0], static_cast<DType>(op->params[0]), true);
    case kReshape:
      return reshape(x[0], op->n_params, op->params);
    case kPermute:
      return permute(x[0], op->n_params, op->params);
    case kBroadcast:
      return broadcast(x[0], op->n_params, op->params);
    case kSlice:
      return slice(x[0], op->n_params, op->params);
    case kReduce:
      return reduction_result(op->code, static_cast<uint32_t>(op->params[0]), op->params[1], x[0],
                              op->n_params > 2 ? static_cast<double>(op->params[2]) : 0.0);
    case kSumTo:
      return sum_to(op, x[0]);
    default:
      return nullptr;
  }
}

}  // namespace needle
