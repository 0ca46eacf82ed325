// The parts of the gate: results.cc computes, gate.cc makes tensors of it, getitem.cc is x[index].
#pragma once
#include "core.h"

namespace needle {

constexpr int kMaxArgs = 3;

// Run a plan; the caller holds references to the arrays. Releases the GIL for long runs.
// False: there is no memory, and an exception is set.
bool run_plan(const Plan& plan, void* const* buffers, int64_t elements);

// The result of an op. Null without an exception: not here, ask the definition.
Array* compute(const Op* op, Array* const* x, int n);

// Plans that are kept are of the kernels and settings that there were.
void forget_plans();

// numbers: a bit mask of the axes to drop, then per axis first index, number of elements, step.
Array* slice_by(const int64_t* numbers, const Array* x);

bool add_getitem(PyObject* module);

}  // namespace needle
