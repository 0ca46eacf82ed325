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

void run_fused(nb::handle program, nb::handle numbers, nb::handle results, nb::list outs,
               nb::list inputs) {
  const Fused fused(program, numbers, results);
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
  Plan plan;
  check(kernels->plan_fused(&plan, fused.program(), out_operands.data(),
                            static_cast<int>(out_operands.size()), in_operands.data(),
                            static_cast<int>(in_operands.size())),
        "run_fused", native(outs[0]));
  if (noted(plan, buffers, may_share(native(outs[0]), inputs) ? kSameView : 0)) return;
  void* scratch = workspace_of(plan);
  const Released released;
  plan.run(&plan, buffers.data(), scratch);
}

void fill(nb::handle out, double value) {
  Plan plan;
  check(kernels->plan_fill(&plan, operand(native(out)), value), "fill", native(out));
  run(plan, {native(out)});
}

void scan(int code, nb::handle out, nb::handle x, int axis) {
  Plan plan;
  check(kernels->plan_scan(&plan, code, operand(native(out)), operand(native(x)), axis), "scan",
        native(x));
  run(plan, {native(out), native(x)});
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
  if (noted(plan, buffers, 0)) return true;
  void* scratch = workspace_of(plan);
  const Released released;
  plan.run(&plan, buffers.data(), scratch);
  return true;
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
      !add_gate(m.ptr()) || !add_numbers(m.ptr())) {
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
  m.def("memory_info", &memory, "live, cached and peak bytes; live blocks.");
  m.def("start_memory_limit", &start_memory_limit,
        "Bytes that arrays may take, in this thread and those to come; 0: no limit.");
  m.def(
      "on_exhausted", [](nb::object f) { set_exhausted_hook(f.ptr()); },
      "Set the function that makes the exception for a failed allocation of a number of bytes.");
  m.def("run_fused", &run_fused);
  m.def("fill", &needle::fill);
  m.def("scan", &scan);
  m.def("extremes", &extremes);
  m.def("matmul", &needle::matmul);
  m.def("matmul_add", &needle::matmul_add, "out += a @ b, of two matrices.");
  m.def("matmul_epilogue", &needle::matmul_epilogue, nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg() = nb::none());
  m.def("gather", &gather);
  m.def("scatter_add", &scatter_add);
  m.def("sort", &needle::sort);
  m.def("random_bits", &random_bits);
  m.def("random_bits_of", &random_bits_of);
  add_image_kernels(m);
  add_batch_kernels(m);
  add_search_kernels(m);
  add_sequence_kernels(m);
  add_updates(m);
  add_programs(m);
  add_shortcuts(m);
}
