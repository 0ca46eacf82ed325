// Copies, conversions and fills: one loop, or tile programs without instructions.
#include <algorithm>
#include <cstring>

#include "elementwise.h"
#include "fused.h"
#include "rows.h"

namespace needle::NEEDLE_ISA {
namespace {

int64_t run_fill(const Plan* plan, void* const* buffers, void* workspace) {
  const auto& program = *reinterpret_cast<const TileProgram*>(plan->state);
  void* with_value[] = {buffers[0], const_cast<int64_t*>(&program.fill)};
  return program.run(plan, with_value, workspace);
}

}  // namespace

const char* plan_copy(Plan* plan, const Operand& out, const Operand& x) {
  const Loops loops = {conversion(x.dtype, out.dtype), nullptr, nullptr, Work::kLittle};
  if (plan_contiguous(plan, loops, out, &x, 1) || plan_rows(plan, loops, out, &x, 1))
    return nullptr;
  return plan_program(plan, nullptr, 0, &out, 1, &x, 1, &out.dtype);
}

const char* plan_fill(Plan* plan, const Operand& out, double value) {
  static const int64_t kNoStrides[kMaxDims] = {};
  Operand constant = {out.dtype, out.ndim, out.shape, kNoStrides};
  const char* problem = plan_program(plan, nullptr, 0, &out, 1, &constant, 1, &out.dtype);
  if (problem) return problem;
  auto* program = reinterpret_cast<TileProgram*>(plan->state);
  const void* source = &value;
  conversion(kFloat64, out.dtype)(&program->fill, &source, 1);
  program->run = plan->run;
  plan->run = run_fill;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
