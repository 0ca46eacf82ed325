// A banded matrix times the middle axis of [rows, n, inner]: interpolation along an axis, and its
// transpose. The neighbours of a row of the result are still in the cache from the row before.
#include "axes.h"
#include "kernels_linear.h"
#include "lanes.h"
#include "spans.h"
#include "stream.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kTaskElements = 8192;
constexpr int64_t kStreamShare = 8;  // of elementwise_streaming_bytes(), as of images elsewhere

struct State {
  int64_t rows, n, m, inner, span;
  int64_t group;  // rows of the result in a task
  bool large;     // the result
  int team;
};

// Row i of the result; weights of zero leave out what they would multiply, infinities too.
template <bool streams, class T>
void mix_row(const State& s, int64_t row, void* const* buffers) {
  const int64_t i = row % s.m;
  const T* weight = as<T>(buffers[3]) + i * s.span;
  const T* x = as<T>(buffers[1]) + (row / s.m * s.n + as<int64_t>(buffers[2])[i]) * s.inner;
  T* out = as<T>(buffers[0]) + row * s.inner;
  write_row<streams, T>(out, s.inner, [&](int64_t j, const auto& lanes) {
    Vector<T> sum = {};
    for (int64_t t = 0; t < s.span; ++t)
      if (weight[t] != 0) sum += lanes.load(x + t * s.inner + j) * weight[t];
    lanes.store(out + j, sum);
  });
}

template <class T>
int64_t run_banded(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  const bool streams = s.large && s.inner % kLanes<T> == 0 && is_streamable(buffers[0]);
  const auto mix = streams ? mix_row<true, T> : mix_row<false, T>;
  const int64_t all = s.rows * s.m;
  run_spans(s.team, (all + s.group - 1) / s.group, false, [&](int64_t task, int) {
    const int64_t begin = task * s.group, end = begin + s.group < all ? begin + s.group : all;
    for (int64_t row = begin; row < end; ++row) mix(s, row, buffers);
    if (streams) end_streams();
  });
  return -1;
}

}  // namespace

const char* plan_banded(Plan* plan, const Operand& x, const Operand& out, int64_t span) {
  if (x.dtype != out.dtype || (x.dtype != kFloat32 && x.dtype != kFloat64))
    return "banded: wants float32 or float64";
  if (x.ndim != 3 || out.ndim != 3 || !is_dense(x) || !is_dense(out))
    return "banded: wants dense [rows, n, inner]";
  if (x.shape[0] != out.shape[0] || x.shape[2] != out.shape[2] || span > x.shape[1])
    return "banded: shapes do not fit";
  State& s = state_of<State>(plan);
  s.rows = x.shape[0];
  s.n = x.shape[1];
  s.m = out.shape[1];
  s.inner = x.shape[2];
  s.span = span;
  s.group = s.inner > 0 && s.inner < kTaskElements ? kTaskElements / s.inner : 1;
  s.large =
      element_count(out) * kItemSize[out.dtype] >= elementwise_streaming_bytes() / kStreamShare;
  s.team = team_size(s.rows * s.m, element_count(out) * span);
  plan->workspace = 0;
  plan->run = x.dtype == kFloat64 ? run_banded<double> : run_banded<float>;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
