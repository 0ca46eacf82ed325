// Recording and Program, as Python sees them.
#include "bind/calls.h"
#include "gate/gate.h"
#include "program/program.h"
#include <algorithm>

namespace needle {
namespace {

using Reference = nb::object;

Array* as_array(const nb::object& x) { return reinterpret_cast<Array*>(x.ptr()); }

Reference steal(Array* x) {
  if (!x && !PyErr_Occurred()) raise_not_recorded("a value cannot be copied");
  if (!x) throw nb::python_error();
  return nb::steal(reinterpret_cast<PyObject*>(x));
}

const int64_t* layout_of(const Source& source) {
  return source.is_dense ? source.spec->strides : source.strides;
}

// ---- Recording: the dry run of a thread

class Recording {
 public:
  Recording() : own_(new Recorder) {}
  ~Recording() {
    stop();
    own_->is_over = true;
    if (!own_->live) delete own_;  // else the last of its objects does
  }
  Recording(const Recording&) = delete;

  void start() {
    if (recorder || !own_->record) throw std::runtime_error("a thread records one program");
    recorders++;
    recorder = own_;
  }
  void stop() {
    if (recorder != own_) return;
    recorders--;
    recorder = nullptr;
  }
  void set_node(int32_t node) { own_->node = node; }
  int64_t live() const { return own_->live; }

  // The array of the next source: dense for no strides, which are not negative.
  Reference source(nb::handle spec, nb::handle all_strides) {
    const std::vector<int64_t> strides = elements<int64_t>(all_strides);
    if (Py_TYPE(spec.ptr()) != spec_type || !reinterpret_cast<Spec*>(spec.ptr())->native)
      throw nb::type_error("a source has a spec of the native CPU");
    auto* own = reinterpret_cast<Spec*>(spec.ptr());
    if (!strides.empty() && static_cast<int>(strides.size()) != own->ndim)
      throw nb::value_error("a source has one stride for each axis");
    Source source = {own, strides.empty(), {}};
    std::copy(strides.begin(), strides.end(), source.strides);
    int64_t reach = own->size ? 1 : 0;
    for (int i = 0; i < own->ndim; i++) reach += (own->shape[i] - 1) * layout_of(source)[i];
    Storage* storage = storage_new(reach * kItemSize[own->code]);
    if (!storage) throw nb::python_error();
    own_->record->blocks.back().source = static_cast<int32_t>(sources_.size());
    Py_INCREF(own);
    Py_INCREF(own);
    sources_.push_back(source);
    return steal(array_new(own, storage, 0, strides.empty() ? nullptr : source.strides));
  }

  // The arrays of these specs that a function of Python computes from others in each run.
  nb::list host(nb::handle function, nb::handle inputs, nb::handle specs) {
    std::vector<Array*> given, results;
    for (nb::handle x : inputs) given.push_back(native(x));
    nb::list made;
    for (nb::handle spec : specs) {
      made.append(steal(array_empty(reinterpret_cast<Spec*>(spec.ptr()))));
      results.push_back(as_array(made[made.size() - 1]));
    }
    if (!note_host(function.ptr(), given, results)) throw nb::python_error();
    return made;
  }

  // The program that gives these arrays, and those for the sources of these numbers.
  Program* finish(nb::list outputs, nb::list stores, nb::handle all_cells) {
    const std::vector<int32_t> cells = elements<int32_t>(all_cells);
    std::vector<Reference> kept;  // blocks of results belong to one of them each
    std::vector<Result> results(outputs.size() + stores.size());
    for (size_t k = 0; k < stores.size(); k++) {  // first: copies of their values may be outputs
      results[outputs.size() + k] = result_of(stores[k], cells[k], &kept);
    }
    for (size_t k = 0; k < outputs.size(); k++) results[k] = result_of(outputs[k], -1, &kept);
    for (Result& result : results) Py_INCREF(result.spec);
    stop();
    return new Program(std::move(own_->record), std::move(sources_), std::move(results));
  }

 private:
  int32_t block_of(const Array* x) const {
    if (!is_virtual(x->storage) || reinterpret_cast<Recorder*>(x->storage->next) != own_) return -1;
    const auto& blocks = own_->record->blocks;
    const int64_t at = static_cast<char*>(x->storage->data) - own_->region;
    const auto found = std::lower_bound(
        blocks.begin(), blocks.end(), at,
        [](const VirtualBlock& block, int64_t begin) { return block.begin < begin; });
    return static_cast<int32_t>(found - blocks.begin());
  }

  Result result_of(nb::handle value, int32_t source, std::vector<Reference>* kept) {
    Reference own = nb::borrow(value);
    const Array* x = native(own);
    int32_t block = block_of(x);
    bool is_taken = block < 0 || own_->record->blocks[block].source >= 0;
    for (const Reference& other : *kept) is_taken |= as_array(other)->storage == x->storage;
    if (is_taken) {
      own = steal(copy_of(as_array(own), x->spec->code, true));
      x = as_array(own);
      block = block_of(x);
    }
    kept->push_back(own);
    Result result = {x->spec, block, source, x->offset, !x->strides, false, {}};
    if (x->strides) std::copy_n(x->strides, x->spec->ndim, result.strides);
    return result;
  }

  Recorder* own_;
  std::vector<Source> sources_;
};

// A `with` block in which memory is real, and kernels run.
class Real {
 public:
  ~Real() { leave(); }
  void enter() { held_ = std::exchange(recorder, nullptr); }
  void leave() {
    if (held_) recorder = std::exchange(held_, nullptr);
  }

 private:
  Recorder* held_ = nullptr;
};

// ---- Program: a call

// The arrays of a call, as the program was planned for, and where they begin.
struct Inputs {
  std::vector<Reference> arrays;
  std::vector<char*> addresses;

  Inputs(const Program& program, nb::sequence given) {
    const auto& sources = program.sources();
    if (nb::len(given) != sources.size())
      throw nb::value_error("a program takes one array for each source");
    for (size_t i = 0; i < sources.size(); i++) {
      Reference x = given[i];
      const Array* array = native(x);
      const Spec* spec = sources[i].spec;
      if (array->spec != spec) {
        raise_dtype_error("a program takes " + text_of_spec(sources[i].spec) + ", not " +
                          text_of(array));
      }
      const int64_t* layout = layout_of(sources[i]);
      if (!std::equal(layout, layout + spec->ndim, strides_of(array))) {
        if (!sources[i].is_dense) throw nb::value_error("a program takes other strides");
        x = steal(copy_of(as_array(x), spec->code, false));
      }
      addresses.push_back(address(as_array(x)));
      arrays.push_back(std::move(x));
    }
  }

  static std::string text_of_spec(Spec* spec) {
    return nb::str(nb::handle(reinterpret_cast<PyObject*>(spec))).c_str();
  }
};

int64_t nbytes_of(const Program& program, const Result& result) {
  return program.record().blocks[result.block].nbytes;
}

// An array over new memory, or the cell's own.
Reference new_array(const Program& program, const Result& result) {
  Storage* storage = storage_new(nbytes_of(program, result));
  if (!storage) throw nb::python_error();
  Py_INCREF(result.spec);
  const int64_t* strides = result.is_dense ? nullptr : result.strides;
  return steal(array_new(result.spec, storage, result.offset, strides));
}

struct Outputs {
  std::vector<Reference> arrays;
  std::vector<char*> addresses;

  Outputs(const Program& program, const Inputs& inputs, nb::sequence given,
          const std::vector<bool>& exclusive) {
    for (const Result& result : program.results()) {
      const bool in_place = result.in_place && exclusive[result.source] &&
                            inputs.arrays[result.source].is(given[result.source]);
      Reference x = in_place ? inputs.arrays[result.source] : new_array(program, result);
      addresses.push_back(static_cast<char*>(as_array(x)->storage->data) +
                          (in_place ? as_array(x)->offset * kItemSize[result.spec->code] : 0));
      arrays.push_back(std::move(x));
    }
  }
};

// (outputs, new arrays of the cells); None if a step found a wrong input.
nb::object run_program(Program& program, nb::sequence given, nb::handle flags) {
  const std::vector<bool> exclusive = elements<bool>(flags);
  if (exclusive.size() != program.sources().size())
    throw nb::value_error("a program takes one flag for each source");
  const Inputs inputs(program, given);
  const Outputs outputs(program, inputs, given, exclusive);
  const int64_t failed = program.run(inputs.addresses.data(), outputs.addresses.data());
  if (failed == -2) throw nb::python_error();
  if (failed >= 0) return nb::none();
  nb::list made, stored;
  for (size_t k = 0; k < outputs.arrays.size(); k++) {
    (program.results()[k].source < 0 ? made : stored).append(outputs.arrays[k]);
  }
  return nb::make_tuple(made, stored);
}

// Seconds of each step: the mean of runs whose results go nowhere.
nb::object measure(Program& program, nb::sequence given, int times) {
  const Inputs inputs(program, given);
  const Outputs outputs(program, inputs, given, std::vector<bool>(program.sources().size()));
  std::vector<double> seconds(program.record().steps.size());
  for (int i = 0; i < times; i++) {
    const int64_t failed =
        program.measure(inputs.addresses.data(), outputs.addresses.data(), seconds.data());
    if (failed == -2) throw nb::python_error();
    if (failed >= 0) return nb::none();
  }
  nb::list means;
  for (const double total : seconds) means.append(total / std::max(times, 1));
  return means;
}

// Of each block in the arena: the position of its memory among the intervals that Python sees.
std::vector<int64_t> positions(const Program& program) {
  const size_t n = program.intervals().size();
  std::vector<int64_t> found(n);
  int64_t next = 0;
  for (size_t i = 0; i < n; i++) found[i] = program.intervals()[i].offset >= 0 ? next++ : -1;
  for (size_t i = 0; i < n; i++) found[i] = found[program.root_of(static_cast<int32_t>(i))];
  return found;
}

// Of each step: (node, name or None, bytes that it reads and writes at most, places), where a place
// is (kind, number, offset in bytes).
nb::list rows(const Program& program) {
  const Record& record = program.record();
  const std::vector<int64_t> intervals = positions(program);
  const auto sources = static_cast<int64_t>(program.sources().size());
  nb::list result;
  for (const Step& step : record.steps) {
    nb::list places;
    int64_t nbytes = 0;
    for (int32_t k = step.first; k < step.first + step.n; k++) {
      const Place& place = record.places[k];
      if (place.block < 0) {
        places.append(nb::make_tuple(place.offset ? "constant" : "none", 0, 0));
        continue;
      }
      const int64_t base = program.base_of(place.block);
      nbytes += record.blocks[place.block].nbytes - place.offset;
      const char* kind = base == 0 ? "value" : base <= sources ? "source" : "result";
      const int64_t number = base == 0         ? intervals[place.block]
                             : base <= sources ? base - 1
                                               : base - 1 - sources;
      places.append(nb::make_tuple(kind, number, place.offset));
    }
    const nb::object name = step.name ? nb::object(nb::str(step.name)) : nb::none();
    result.append(nb::make_tuple(step.node, name, nbytes, places));
  }
  return result;
}

// Of each value in the arena: (bytes, first step, step after the last, offset).
nb::list intervals(const Program& program) {
  nb::list result;
  for (const Interval& x : program.intervals()) {
    if (x.offset >= 0) result.append(nb::make_tuple(x.nbytes, x.first, x.last, x.offset));
  }
  return result;
}

}  // namespace

void add_programs(nb::module_& m) {
  nb::class_<Real>(m, "Real", "A `with` block in which a thread that records computes.")
      .def(nb::init<>())
      .def("__enter__", &Real::enter)
      .def("__exit__", [](Real& real, nb::args) { real.leave(); });
  m.def("is_recording", &is_dry, "Whether this thread only notes what it computes.");
  nb::class_<Program>(m, "Program", "Kernels that run one after the other, and their memory.")
      .def("run", &run_program, "run(arrays, exclusive): (outputs, stored), or None")
      .def("measure", &measure, "measure(arrays, times): mean seconds of each step, or None")
      .def("rows", &rows, "(node, name, bytes, places) of each step")
      .def("intervals", &intervals, "(bytes, first step, end, offset) of each value in the arena")
      .def("poison", &Program::poison, "Overwrite values that no later step may use.")
      .def_prop_ro("arena_bytes", &Program::arena_bytes)
      .def_prop_ro("workspace_bytes", &Program::workspace_bytes)
      .def_prop_ro("result_bytes", &Program::result_bytes, "Of those not written in place.");
  nb::class_<Recording>(m, "Recording", "The dry run of a thread.")
      .def(nb::init<>())
      .def("start", &Recording::start, "Record what this thread computes.")
      .def("stop", &Recording::stop, "Compute again.")
      .def("source", &Recording::source, nb::arg("spec"), nb::arg("strides"),
           "The array of the next source; no strides: dense.")
      .def("set_node", &Recording::set_node, "Say which node the next steps belong to.")
      .def("host", &Recording::host, nb::arg("function"), nb::arg("inputs"), nb::arg("specs"),
           "Arrays that a function computes in each run, in place of what the node noted.")
      .def("finish", &Recording::finish, nb::arg("outputs"), nb::arg("stores"), nb::arg("cells"),
           "The program that gives these arrays.")
      .def_prop_ro("live", &Recording::live, "How many blocks of virtual memory objects hold.");
}

}  // namespace needle
