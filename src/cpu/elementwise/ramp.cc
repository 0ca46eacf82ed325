// Evenly spaced numbers: start + i * step. This file is compiled without fused multiplication and
// addition, so that the numbers are NumPy's to the last bit.
#include "base/axes.h"
#include "elementwise/elementwise.h"

namespace needle::NEEDLE_ISA {
namespace {

struct State {
  int64_t n;
  double start, step;
};

template <class T, class A>
int64_t run_ramp(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  const auto start = static_cast<A>(s.start), step = static_cast<A>(s.step);
  T* out = as<T>(buffers[0]);
  const int team = s.n < kSerial ? 1 : threads();
  parallel(team, [&](int part) {
    const int64_t end = s.n * (part + 1) / team;
    for (int64_t i = s.n * part / team; i < end; ++i)
      out[i] = static_cast<T>(static_cast<A>(i) * step + start);
  });
  return -1;
}

Run ramp_of(DType dtype, bool is_whole) {
  if (is_whole && dtype == kInt64) return run_ramp<int64_t, int64_t>;
  if (is_whole && dtype == kInt32) return run_ramp<int32_t, int64_t>;
  if (dtype == kFloat32) return is_whole ? run_ramp<float, int64_t> : run_ramp<float, double>;
  if (dtype == kFloat64) return is_whole ? run_ramp<double, int64_t> : run_ramp<double, double>;
  return nullptr;
}

}  // namespace

const char* plan_ramp(Plan* plan, const Operand& out, bool is_whole, double start, double step) {
  plan->run = ramp_of(out.dtype, is_whole);
  if (!plan->run) return "ramp: unsupported dtype";
  plan->workspace = 0;
  state_of<State>(plan) = {element_count(out), start, step};
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
