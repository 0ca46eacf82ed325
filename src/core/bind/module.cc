// needle._core: the kernels as functions of Arrays, and the base types of the graph.
#include "bind/calls.h"
#include "device/dispatch.h"
#include "gate/gate.h"
#include <algorithm>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <string>
#include <vector>

namespace needle {

const Kernels* kernels;
const char* const reduction_names[] = {"sum",    "prod", "max", "min",      "mean",      "argmax",
                                       "argmin", "any",  "all", "variance", "deviation", "norm"};

namespace {

const char* const function_names[] = {
#define UNARY(name, ...) #name,
#define BINARY(name, ...) #name,
#define TERNARY(name, ...) #name,
#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY
};
template <size_t N>
nb::dict numbered(const char* const (&names)[N]) {
  nb::dict result;
  for (size_t i = 0; i < N; i++) result[names[i]] = i;
  return result;
}

void elementwise(int code, nb::handle out_object, nb::args inputs) {
  const Array* out = native(out_object);
  std::vector<Operand> operands;
  std::vector<void*> buffers{address(out)};
  for (nb::handle x : inputs) {
    operands.push_back(operand(native(x)));
    buffers.push_back(address(native(x)));
  }
  Plan plan;
  check(kernels->plan_elementwise(&plan, code, operand(out), operands.data(),
                                  static_cast<int>(operands.size())),
        function_names[code], native(inputs[inputs.size() - 1]));
  if (noted(plan, buffers, 0)) return;
  void* scratch = workspace_of(plan);
  const Released released;
  plan.run(&plan, buffers.data(), scratch);
}

std::vector<Instruction> instructions(nb::handle program) {
  std::vector<Instruction> code;
  for (nb::handle step : program) {
    Instruction instruction{nb::cast<int>(step[0]), {0, 0, 0}};
    int i = 0;
    for (nb::handle argument : step[1]) instruction.args[i++] = nb::cast<int16_t>(argument);
    code.push_back(instruction);
  }
  return code;
}

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

// numbers: (value, code of a dtype)
void run_fused(nb::handle program, nb::handle numbers, nb::handle results, nb::list outs,
               nb::list inputs) {
  const std::vector<Instruction> code = instructions(program);
  std::vector<Number> values;
  for (nb::handle x : numbers)
    values.push_back({nb::cast<double>(x[0]), static_cast<DType>(nb::cast<int>(x[1]))});
  std::vector<int16_t> places;
  for (nb::handle r : results) places.push_back(nb::cast<int16_t>(r));
  std::vector<Operand> out_operands, in_operands;
  std::vector<void*> buffers;
  for (nb::handle x : outs) {
    out_operands.push_back(operand(native(x)));
    buffers.push_back(address(native(x)));
  }
  for (nb::handle x : inputs) {
    in_operands.push_back(operand(native(x)));
    buffers.push_back(address(native(x)));
  }
  const FusedProgram whole = {code.data(), static_cast<int>(code.size()), values.data(),
                              static_cast<int>(values.size()), places.data()};
  Plan plan;
  check(
      kernels->plan_fused(&plan, whole, out_operands.data(), static_cast<int>(out_operands.size()),
                          in_operands.data(), static_cast<int>(in_operands.size())),
      "run_fused", native(outs[0]));
  if (noted(plan, buffers, may_share(native(outs[0]), inputs) ? kSameView : 0)) return;
  void* scratch = workspace_of(plan);
  const Released released;
  plan.run(&plan, buffers.data(), scratch);
}

void copy(nb::handle out, nb::handle x) {
  Plan plan;
  check(kernels->plan_copy(&plan, operand(native(out)), operand(native(x))), "copy", native(x));
  run(plan, {native(out), native(x)});
}

void fill(nb::handle out, double value) {
  Plan plan;
  check(kernels->plan_fill(&plan, operand(native(out)), value), "fill", native(out));
  run(plan, {native(out)});
}

void reduce(int code, nb::handle out, nb::handle x, uint32_t axes, double factor) {
  Plan plan;
  check(kernels->plan_reduce(&plan, code, operand(native(out)), operand(native(x)), axes, factor),
        reduction_names[code], native(x));
  run(plan, {native(out), native(x)});
}

void scan(int code, nb::handle out, nb::handle x, int axis) {
  Plan plan;
  check(kernels->plan_scan(&plan, code, operand(native(out)), operand(native(x)), axis), "scan",
        native(x));
  run(plan, {native(out), native(x)});
}

void product_grad(int kind, nb::handle dx, nb::handle x, nb::handle g, int axis) {
  Plan plan;
  check(kernels->plan_product_grad(&plan, kind, operand(native(x)), operand(native(g)), axis),
        "product_grad", native(x));
  run(plan, {native(dx), native(x), native(g)});
}

void matmul(nb::handle out, nb::handle a, nb::handle b) {
  Plan plan;
  check(kernels->plan_matmul(&plan, operand(native(out)), operand(native(a)), operand(native(b))),
        "matmul", native(a));
  run(plan, {native(out), native(a), native(b)});
}

void matmul_add(nb::handle out, nb::handle a, nb::handle b) {
  Plan plan;
  check_dense(native(out), "matmul_add");
  check(
      kernels->plan_matmul_add(&plan, operand(native(out)), operand(native(a)), operand(native(b))),
      "matmul_add", native(a));
  run(plan, {native(out), native(a), native(b)});
}

int64_t gather(nb::handle out, nb::handle x, nb::handle index, int axis) {
  Plan plan;
  check(kernels->plan_gather(&plan, operand(native(out)), operand(native(x)),
                             operand(native(index)), axis),
        "gather", native(x));
  return run(plan, {native(out), native(x), native(index)}, kChecked);
}

int64_t scatter_add(nb::handle out, nb::handle index, nb::handle updates, int axis) {
  Plan plan;
  check(kernels->plan_scatter_add(&plan, operand(native(out)), operand(native(index)),
                                  operand(native(updates)), axis),
        "scatter_add", native(updates));
  return run(plan, {native(out), native(index), native(updates)}, kChecked);
}

void extremes(nb::handle values, nb::handle positions, nb::handle x, int axis, bool largest) {
  Plan plan;
  check(kernels->plan_extremes(&plan, operand(native(values)), operand(native(x)), axis, largest),
        "extremes", native(x));
  run(plan, {native(values), native(positions), native(x)});
}

void sort(nb::handle values, nb::handle indices, nb::handle x, int axis, bool descending) {
  Plan plan;
  check(kernels->plan_sort(&plan, operand(native(values)), operand(native(indices)),
                           operand(native(x)), axis, descending),
        "sort", native(x));
  run(plan, {native(values), native(indices), native(x)});
}

void random_bits(nb::handle out, uint64_t key, uint64_t counter) {
  Plan plan;
  check(kernels->plan_random_bits(&plan, operand(native(out)), 0), "random_bits", native(out));
  uint64_t stream[] = {key, counter};
  void* buffers[] = {address(native(out)), stream};
  if (is_dry()) {
    buffers[1] = table_of(stream, sizeof stream);
    if (!buffers[1] || !note(plan, buffers, 2, 0, nullptr)) throw nb::python_error();
    return;
  }
  const Released released;
  plan.run(&plan, buffers, nullptr);
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

void ramp(nb::handle out, bool is_whole, double start, double step) {
  Plan plan;
  check(kernels->plan_ramp(&plan, operand(native(out)), is_whole, start, step), "ramp",
        native(out));
  run(plan, {native(out)});
}

// state: a MersenneTwister's memory, which goes on. The first normal numbers are known; the last is
// left out where the number of the others is odd.
void draw(int32_t kind, nb::handle out, nb::handle state, int64_t low, uint32_t last,
          const std::vector<float>& known) {
  refuse_dry("numbers are drawn from NumPy's generator");
  const Array* x = native(out);
  check_dense(x, "draw");
  const auto done = static_cast<int64_t>(known.size());
  if (done > (kind == kDrawNormal ? x->spec->size : 0))
    throw nb::value_error("draw: more numbers are known than were drawn");
  const int64_t rest = x->spec->size - done, one = 1;
  const int64_t n = kind == kDrawNormal ? rest & ~one : rest;
  Plan plan;
  check(kernels->plan_draw(&plan, kind, {x->spec->code, 1, &n, &one}, low, last), "draw", x);
  std::copy(known.begin(), known.end(), reinterpret_cast<float*>(address(x)));
  void* scratch = workspace_of(plan);
  Py_buffer bytes;
  if (PyObject_GetBuffer(state.ptr(), &bytes, PyBUF_WRITABLE) < 0) throw nb::python_error();
  const bool fits = bytes.len == static_cast<Py_ssize_t>(sizeof(MersenneTwister));
  if (fits) {
    void* buffers[] = {address(x) + done * kItemSize[x->spec->code], bytes.buf};
    const Released released;
    plan.run(&plan, buffers, scratch);
  }
  PyBuffer_Release(&bytes);
  if (!fits) throw nb::value_error("draw: expected the bytes of a state");
}

// ---- composites ------------------------------------------------------------------------------

void softmax(int kind, nb::handle out, nb::handle x) {
  Plan plan;
  check(kernels->plan_softmax(&plan, kind, operand(native(out)), operand(native(x))), "softmax",
        native(x));
  run(plan, {native(out), native(x)});
}

void softmax_grad(int kind, nb::handle dx, nb::handle out, nb::handle g) {
  Plan plan;
  check(kernels->plan_softmax_grad(&plan, kind, operand(native(dx)), operand(native(out)),
                                   operand(native(g))),
        "softmax", native(out));
  run(plan, {native(dx), native(out), native(g)});
}

int64_t cross_entropy(nb::handle loss, nb::handle shift, nb::handle rest, nb::handle logits,
                      nb::handle labels, int64_t ignore, double smoothing) {
  Plan plan;
  check(kernels->plan_cross_entropy(&plan, operand(native(logits)), operand(native(labels)), ignore,
                                    smoothing),
        "cross_entropy", native(logits));
  return run(plan, {native(loss), native(shift), native(rest), native(logits), native(labels)},
             kChecked);
}

int64_t cross_entropy_grad(nb::handle dlogits, nb::handle g, nb::handle logits, nb::handle labels,
                           nb::handle shift, nb::handle rest, int64_t ignore, double smoothing) {
  Plan plan;
  check(kernels->plan_cross_entropy_grad(&plan, operand(native(logits)), operand(native(labels)),
                                         ignore, smoothing),
        "cross_entropy", native(logits));
  for (nb::handle array : {g, shift, rest}) check_dense(native(array), "cross_entropy");
  return run(
      plan,
      {native(dlogits), native(g), native(logits), native(labels), native(shift), native(rest)},
      kChecked);
}

void layer_norm(int kind, nb::handle out, nb::handle mean, nb::handle rstd, nb::handle x,
                nb::handle weight, nb::handle bias, double eps) {
  Plan plan;
  check(kernels->plan_layer_norm(&plan, kind, operand(native(x)), eps), "layer_norm", native(x));
  for (nb::handle array : {x, weight, bias}) check_dense(native(array), "layer_norm");
  run(plan, {native(out), native(mean), native(rstd), native(x), native(weight), native(bias)});
}

void layer_norm_grad(int kind, nb::handle dx, nb::handle dweight, nb::handle dbias, nb::handle g,
                     nb::handle x, nb::handle weight, nb::handle mean, nb::handle rstd) {
  Plan plan;
  check(kernels->plan_layer_norm_grad(&plan, kind, operand(native(x))), "layer_norm", native(x));
  for (nb::handle array : {g, x, weight}) check_dense(native(array), "layer_norm");
  run(plan, {native(dx), native(dweight), native(dbias), native(g), native(x), native(weight),
             native(mean), native(rstd)});
}

void batch_norm(nb::handle out, nb::handle mean, nb::handle var, nb::handle x, nb::handle weight,
                nb::handle bias, double eps) {
  Plan plan;
  check(kernels->plan_batch_norm(&plan, operand(native(x)), eps), "batch_norm", native(x));
  for (nb::handle array : {x, weight, bias}) check_dense(native(array), "batch_norm");
  run(plan, {native(out), native(mean), native(var), native(x), native(weight), native(bias)});
}

void batch_norm_grad(nb::handle dx, nb::handle dweight, nb::handle dbias, nb::handle g,
                     nb::handle x, nb::handle weight, nb::handle mean, nb::handle var, double eps) {
  Plan plan;
  check(kernels->plan_batch_norm_grad(&plan, operand(native(x)), eps), "batch_norm", native(x));
  for (nb::handle array : {g, x, weight}) check_dense(native(array), "batch_norm");
  run(plan, {native(dx), native(dweight), native(dbias), native(g), native(x), native(weight),
             native(mean), native(var)});
}

nb::dict memory() {
  const MemoryInfo info = memory_info();
  nb::dict result;
  result["live"] = info.live;
  result["cached"] = info.cached;
  result["workspaces"] = info.scratch;
  result["peak"] = info.peak;
  result["blocks"] = info.blocks;
  result["limit"] = info.limit;
  return result;
}

}  // namespace
}  // namespace needle

NB_MODULE(_core, m) {
  using namespace needle;
  m.doc() = "The native CPU: base types of the graph, memory and kernels.";
  nb::set_leak_warnings(false);
  if (!add_array_types(m.ptr()) || !add_graph_types(m.ptr()) || !add_port_types(m.ptr()) ||
      !add_gate(m.ptr())) {
    throw nb::python_error();
  }
  m.def(
      "select_isa",
      [](const char* name) {
        kernels = select_isa(name);
        forget_plans();
      },
      "Load the kernels of an instruction set; the best one for an empty name.");
  m.def("isa", [] { return std::string(kernels->isa); }, "The instruction set chosen.");
  m.def("vector_bits", [] { return kernels->vector_bits; }, "Width of its vectors.");
  m.def("supported_isas", &supported_isas, "What this processor and this build can run.");
  m.def(
      "set_alone", [](bool alone) { kernels->set_alone(alone); },
      "Whether kernels that this thread calls run on it alone.");
  m.def("set_threads", [](int n) { set_threads(n); }, "Threads; 0: all cores.");
  m.def(
      "set_products", [](bool by_rows) { set_products(by_rows); },
      "Whether each row of a product has the same bits beside any others.");
  m.def(
      "set_streaming_bytes",
      [](int64_t bytes) {
        kernels->set_streaming_bytes(bytes);
        forget_plans();
      },
      "Size in bytes from which results are stored past the caches; 0: the default.");
  m.def(
      "count_as_zen",
      [](int generation) {
        kernels->count_as_zen(generation);
        forget_plans();
      },
      "Make choices as for this generation of processors (see stream.cc: 1, 4 or 5); 0: for "
      "others; -1: for the processor itself.");
  m.def("functions", [] { return numbered(function_names); }, "Elementwise functions by name.");
  m.def("reductions", [] { return numbered(reduction_names); }, "Reductions by name.");
  m.def("memory_info", &memory, "live, cached and peak bytes; live blocks.");
  m.def("start_memory_limit", &start_memory_limit,
        "Bytes that arrays may take, in this thread and those to come; 0: no limit.");
  m.def(
      "on_exhausted", [](nb::object f) { set_exhausted_hook(f.ptr()); },
      "Set the function that makes the exception for a failed allocation of a number of bytes.");
  m.def("elementwise", &elementwise);
  m.def("run_fused", &run_fused);
  m.def("copy", &needle::copy);
  m.def("fill", &needle::fill);
  m.def("reduce", &needle::reduce, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg() = 1.0);
  m.def("scan", &scan);
  m.def("extremes", &extremes);
  m.def("product_grad", &product_grad);
  m.def("matmul", &needle::matmul);
  m.def("matmul_add", &needle::matmul_add, "out += a @ b, of two matrices.");
  m.def("gather", &gather);
  m.def("scatter_add", &scatter_add);
  m.def("sort", &needle::sort);
  m.def("ramp", &ramp);
  m.def("random_bits", &random_bits);
  m.def("random_bits_of", &random_bits_of);
  m.def("draw", &draw);
  m.def("softmax", &softmax);
  m.def("softmax_grad", &softmax_grad);
  m.def("cross_entropy", &cross_entropy);
  m.def("cross_entropy_grad", &cross_entropy_grad);
  m.def("layer_norm", &layer_norm);
  m.def("layer_norm_grad", &layer_norm_grad);
  m.def("batch_norm", &batch_norm);
  m.def("batch_norm_grad", &batch_norm_grad);
  add_image_kernels(m);
  add_batch_kernels(m);
  add_search_kernels(m);
  add_sequence_kernels(m);
  add_updates(m);
  add_programs(m);
  add_shortcuts(m);
}
