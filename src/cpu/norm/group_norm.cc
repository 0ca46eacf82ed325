// Group norm of float32 images, dense [n, positions, c]: a task is an image. Columns are summed in
// float over blocks of rows, and over the blocks in double.
#include <algorithm>
#include <cmath>

#include "base/axes.h"
#include "base/table.h"
#include "isa/lanes.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kRows = 64;  // of a block
using Floats = Vector<float>;

struct State {
  int64_t n, positions, c, groups;
  double eps;
  int team;

  int64_t image() const { return positions * c; }
  int64_t width() const { return c / groups; }
  double count() const { return static_cast<double>(positions * width()); }
};

// totals[i] = sum over the rows of term(place of row and column, column, lanes)
template <class Term>
void sum_columns(const State& s, double* totals, const Term& term) {
  std::fill(totals, totals + s.c, 0.0);
  for (int64_t row = 0; row < s.positions; row += kRows) {
    const int64_t end = std::min(row + kRows, s.positions);
    for_vectors<float>(s.c, [&](int64_t i, auto part) {
      Floats sum = {};
      for (int64_t r = row; r < end; ++r) sum += term(r * s.c + i, i, part);
      float lanes[kLanes<float>];
      store(lanes, sum);
      const int64_t count = std::min<int64_t>(kLanes<float>, s.c - i);
      for (int64_t j = 0; j < count; ++j) totals[i + j] += lanes[j];
    });
  }
}

// values[channel] = of(sum of the totals of its group, group)
template <class Of>
void share(const State& s, const double* totals, float* values, const Of& of) {
  for (int64_t group = 0; group < s.groups; ++group) {
    const double* own = totals + group * s.width();
    double sum = 0;
    for (int64_t i = 0; i < s.width(); ++i) sum += own[i];
    std::fill_n(values + group * s.width(), s.width(), of(sum, group));
  }
}

// The mean of a group of an image, or the variance around its mean, in double: sums of floats left
// their range.
template <class Of>
double far_mean(const State& s, const float* x, int64_t group, const Of& of) {
  double sum = 0;
  for (int64_t row = 0; row < s.positions; ++row)
    for (int64_t i = group * s.width(); i < (group + 1) * s.width(); ++i)
      sum += of(x[row * s.c + i]);
  return sum / s.count();
}

double far_variance(const State& s, const float* x, int64_t group, double mean) {
  return far_mean(s, x, group, [mean](double v) { return (v - mean) * (v - mean); });
}

// body(place, column, lanes) for all elements of an image
template <class Body>
void each_element(const State& s, const Body& body) {
  for (int64_t row = 0; row < s.positions; ++row)
    for_vectors<float>(s.c, [&](int64_t i, auto part) { body(row * s.c + i, i, part); });
}

// Of each thread: a row of doubles, then two of floats.
struct Rows {
  double* totals;
  float *first, *second;

  Rows(const State& s, void* workspace, int thread)
      : totals(as<double>(workspace) + 2 * thread * s.c),
        first(reinterpret_cast<float*>(totals + s.c)),
        second(first + s.c) {}
};

int64_t run_forward(const Plan* plan, void* const* buffers, void* workspace) {
  const auto& s = state_of<State>(plan);
  run_tasks(s.team, s.n, [&](int64_t image, int thread) {
    const Rows rows(s, workspace, thread);
    float* out = as<float>(buffers[0]) + image * s.image();
    const float* x = as<float>(buffers[3]) + image * s.image();
    float *mean = rows.first, *scale = rows.second;
    sum_columns(s, rows.totals,
                [&](int64_t at, int64_t, const auto& part) { return part.load(x + at); });
    share(s, rows.totals, mean, [&](double sum, int64_t group) {
      double found = sum / s.count();
      if (!(std::fabs(found) < INFINITY)) found = far_mean(s, x, group, [](double v) { return v; });
      return as<float>(buffers[1])[image * s.groups + group] = static_cast<float>(found);
    });
    sum_columns(s, rows.totals, [&](int64_t at, int64_t i, const auto& part) {
      const Floats distance = part.load(x + at) - part.load(mean + i);
      return distance * distance;
    });
    share(s, rows.totals, scale, [&](double sum, int64_t group) {
      double var = sum / s.count();
      if (!(var < INFINITY)) var = far_variance(s, x, group, mean[group * s.width()]);
      as<float>(buffers[2])[image * s.groups + group] = static_cast<float>(var);
      return static_cast<float>(1 / std::sqrt(var + s.eps));
    });
    const float *weight = as<float>(buffers[4]), *bias = as<float>(buffers[5]);
    for (int64_t i = 0; i < s.c; ++i) scale[i] *= weight[i];
    each_element(s, [&](int64_t at, int64_t i, const auto& part) {
      const Floats distance = part.load(x + at) - part.load(mean + i);
      part.store(out + at, distance * part.load(scale + i) + part.load(bias + i));
    });
  });
  return -1;
}

// rows of each thread, then for each image the sums of g * normal and of g by channel
double* sums_of(const State& s, void* workspace, int64_t image) {
  return as<double>(workspace) + (5 * s.team + 2 * image) * s.c;
}

void backward_of(const State& s, void* const* buffers, void* workspace, int64_t image, int thread) {
  float* rstd = as<float>(as<double>(workspace) + 5 * thread * s.c);
  float *mean = rstd + s.c, *level = mean + s.c, *along = level + s.c;
  double* totals = reinterpret_cast<double*>(along + s.c);
  float* dx = as<float>(buffers[0]) + image * s.image();
  const float* g = as<float>(buffers[3]) + image * s.image();
  const float* x = as<float>(buffers[4]) + image * s.image();
  const float* weight = as<float>(buffers[5]);
  for (int64_t i = 0; i < s.c; ++i) {
    const int64_t place = image * s.groups + i / s.width();
    mean[i] = as<float>(buffers[6])[place];
    double var = as<float>(buffers[7])[place];
    if (!(var < INFINITY)) {  // it has no float
      if (i % s.width()) {
        rstd[i] = rstd[i - 1];
        continue;
      }
      var = far_variance(s, x, i / s.width(), mean[i]);
    }
    rstd[i] = static_cast<float>(1 / std::sqrt(var + s.eps));
  }
  const auto normal = [&](int64_t at, int64_t i, const auto& part) {
    return (part.load(x + at) - part.load(mean + i)) * part.load(rstd + i);
  };
  double *along_sums = sums_of(s, workspace, image), *sums = along_sums + s.c;
  sum_columns(s, along_sums, [&](int64_t at, int64_t i, const auto& part) {
    return part.load(g + at) * normal(at, i, part);
  });
  sum_columns(s, sums, [&](int64_t at, int64_t, const auto& part) { return part.load(g + at); });
  const auto mean_of = [&](double sum, int64_t) { return static_cast<float>(sum / s.count()); };
  for (int64_t i = 0; i < s.c; ++i) totals[i] = sums[i] * weight[i];
  share(s, totals, level, mean_of);
  for (int64_t i = 0; i < s.c; ++i) totals[i] = along_sums[i] * weight[i];
  share(s, totals, along, mean_of);
  each_element(s, [&](int64_t at, int64_t i, const auto& part) {
    const Floats h = part.load(g + at) * part.load(weight + i) - part.load(level + i);
    part.store(dx + at, part.load(rstd + i) * (h - normal(at, i, part) * part.load(along + i)));
  });
}

int64_t run_backward(const Plan* plan, void* const* buffers, void* workspace) {
  const auto& s = state_of<State>(plan);
  run_tasks(s.team, s.n,
            [&](int64_t image, int thread) { backward_of(s, buffers, workspace, image, thread); });
  for (int64_t i = 0; i < s.c; ++i) {
    double dweight = 0, dbias = 0;
    for (int64_t image = 0; image < s.n; ++image) {
      dweight += sums_of(s, workspace, image)[i];
      dbias += sums_of(s, workspace, image)[s.c + i];
    }
    as<float>(buffers[1])[i] = static_cast<float>(dweight);
    as<float>(buffers[2])[i] = static_cast<float>(dbias);
  }
  return -1;
}

const char* plan_state(Plan* plan, const Operand& x, int64_t groups, double eps) {
  if (x.dtype != kFloat32) return "group_norm: expected float32";
  if (x.ndim != 3 || !is_dense(x) || element_count(x) == 0)
    return "group_norm: expected dense images [n, positions, c]";
  if (groups < 1 || x.shape[2] % groups) return "group_norm: the groups do not divide the channels";
  const int team = team_size(x.shape[0], element_count(x));
  state_of<State>(plan) = {x.shape[0], x.shape[1], x.shape[2], groups, eps, team};
  return nullptr;
}

}  // namespace

const char* plan_group_norm(Plan* plan, const Operand& x, int64_t groups, double eps) {
  const char* refused = plan_state(plan, x, groups, eps);
  if (refused) return refused;
  const State& s = state_of<State>(plan);
  plan->workspace = 2 * s.team * s.c * static_cast<int64_t>(sizeof(double));
  plan->run = run_forward;
  return nullptr;
}

const char* plan_group_norm_grad(Plan* plan, const Operand& x, int64_t groups, double eps) {
  const char* refused = plan_state(plan, x, groups, eps);
  if (refused) return refused;
  const State& s = state_of<State>(plan);
  plan->workspace = (5 * s.team + 2 * s.n) * s.c * static_cast<int64_t>(sizeof(double));
  plan->run = run_backward;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
