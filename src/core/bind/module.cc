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
  add_kernels(m);
  add_batch_kernels(m);
  add_sequence_kernels(m);
  add_updates(m);
  add_programs(m);
  add_shortcuts(m);
}
