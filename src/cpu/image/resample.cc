// Banded matrices times one or two neighbouring axes of images: interpolation, and its transpose.
// The neighbours of a row of the result are still in the cache from the row before; of two axes a
// row mixed along the first stays in the first cache while it is mixed along the second.
#include "base/axes.h"
#include "base/table.h"
#include "isa/lanes.h"
#include "base/spans.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kTaskElements = 8192;
constexpr int64_t kStreamShare = 8;  // of elementwise_streaming_bytes(), as of images elsewhere

// Of a matrix, in the buffers: where its rows begin, and their elements.
struct Bands {
  int64_t n, m, span;  // sizes of the axis before and after; elements of a row
};

struct State {
  Bands first, second;  // second.span is 0 where there is one axis
  int64_t rows, inner;  // of `inner` elements are the points of the last axis
  int64_t group;        // rows of the result in a task
  bool large;           // the result
  int team;
};

// out = sum of weight[t] * x[t * stride]. Weights of zero leave out what they would multiply,
// infinities too.
template <bool streams, class T>
inline void mix(T* out, int64_t n, const T* x, int64_t stride, const T* weight, int64_t span) {
  for (; span > 0 && weight[span - 1] == 0; --span) continue;
  for (; span > 0 && *weight == 0; --span, ++weight) x += stride;
  const T left = span > 0 ? weight[0] : T(0), right = span > 1 ? weight[1] : T(0);
  if (span == 1) {
    write_row<streams, T>(out, n, [&](int64_t j, const auto& lanes) {
      lanes.store(out + j, lanes.load(x + j) * left);
    });
  } else if (span == 2) {
    write_row<streams, T>(out, n, [&](int64_t j, const auto& lanes) {
      lanes.store(out + j, lanes.load(x + j) * left + lanes.load(x + stride + j) * right);
    });
  } else {
    write_row<streams, T>(out, n, [&](int64_t j, const auto& lanes) {
      Vector<T> sum = {};
      for (int64_t t = 0; t < span; ++t)
        if (weight[t] != 0) sum += lanes.load(x + t * stride + j) * weight[t];
      lanes.store(out + j, sum);
    });
  }
}

// Row i of the result. `mixed` has room for a row of x.
template <bool streams, class T>
void mix_row(const State& s, int64_t row, void* const* buffers, T* mixed) {
  const Bands &first = s.first, &second = s.second;
  const int64_t i = row % first.m, width = second.n * s.inner;
  const T* weight = as<T>(buffers[3]) + i * first.span;
  const T* x = as<T>(buffers[1]) + (row / first.m * first.n + as<int64_t>(buffers[2])[i]) * width;
  T* out = as<T>(buffers[0]) + row * second.m * s.inner;
  if (second.span == 0) return mix<streams>(out, width, x, width, weight, first.span);
  mix<false>(mixed, width, x, width, weight, first.span);
  const int64_t* begin = as<int64_t>(buffers[4]);
  weight = as<T>(buffers[5]);
  for (int64_t p = 0; p < second.m; ++p, out += s.inner, weight += second.span)
    mix<streams>(out, s.inner, mixed + begin[p] * s.inner, s.inner, weight, second.span);
}

template <class T>
int64_t run_banded(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const bool streams = s.large && s.inner % kLanes<T> == 0 && is_streamable(buffers[0]);
  const auto run_row = streams ? mix_row<true, T> : mix_row<false, T>;
  const int64_t all = s.rows * s.first.m, width = s.second.n * s.inner;
  run_spans(s.team, (all + s.group - 1) / s.group, false, [&](int64_t task, int thread) {
    const int64_t begin = task * s.group, end = least(begin + s.group, all);
    for (int64_t row = begin; row < end; ++row)
      run_row(s, row, buffers, as<T>(workspace) + thread * width);
    if (streams) end_streams();
  });
  return -1;
}

}  // namespace

const char* plan_banded(Plan* plan, const Operand& x, const Operand& out, int64_t first_span,
                        int64_t second_span) {
  if (x.dtype != out.dtype || (x.dtype != kFloat32 && x.dtype != kFloat64))
    return "banded: expected float32 or float64";
  if (x.ndim != 4 || out.ndim != 4 || !is_dense(x) || !is_dense(out))
    return "banded: expected dense [rows, n, width, inner]";
  if (x.shape[0] != out.shape[0] || x.shape[3] != out.shape[3] || first_span > x.shape[1] ||
      second_span > x.shape[2] || (second_span == 0 && x.shape[2] != out.shape[2]))
    return "banded: shapes do not fit";
  State& s = state_of<State>(plan);
  s.first = {x.shape[1], out.shape[1], first_span};
  s.second = {x.shape[2], out.shape[2], second_span};
  s.rows = x.shape[0];
  s.inner = x.shape[3];
  const int64_t width = s.second.m * s.inner;
  s.group = width > 0 && width < kTaskElements ? kTaskElements / width : 1;
  s.large =
      element_count(out) * kItemSize[out.dtype] >= elementwise_streaming_bytes() / kStreamShare;
  s.team = team_size(s.rows * s.first.m, element_count(out) * (first_span + second_span));
  plan->workspace = second_span == 0 ? 0 : s.team * s.second.n * s.inner * kItemSize[out.dtype];
  plan->run = x.dtype == kFloat64 ? run_banded<double> : run_banded<float>;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
