// Softmax and cross entropy. A row is read once where it fits into its threads' registers
// (`packs`); otherwise it is in the cache after the first time.
#include "rows.cuh"

constexpr int kPositionBits = 40;  // see index.cu

template <class C>
__device__ inline C minus_infinity() {
  return -C(1) / C(0);
}

template <class T, int packs, class C>
__device__ inline C row_max(const Row<T, packs>& x, i64 count, const Team& team, C* room) {
  C top = minus_infinity<C>();
  each<T, packs>(count, team, [&](int slot, i64 i) { top = Larger()(x.at(slot, i), top); });
  return team.over(top, room, Larger());
}

template <class T, int packs, class C>
__device__ inline C row_sum_exp(const Row<T, packs>& x, i64 count, C top, const Team& team,
                                C* room) {
  C sum = 0;
  each<T, packs>(count, team, [&](int slot, i64 i) { sum += math::exp(x.at(slot, i) - top); });
  return team.over(sum, room, Add());
}

// rows: out, x without the axis; threads: of a row. (Three blocks: see
// elementwise.cu.)
template <bool logarithm, class T, int packs>
__global__ void __launch_bounds__(256, 3)
    softmax(T* out, const T* from, Geometry<2> rows, i64 threads, i64 count, i64 out_step,
            i64 x_step) {
  using C = Compute<T>;
  SHARED(C, room, [kMaxWarps]);
  const Team team(threads);
  if (team.row >= rows.count) return;
  const Offsets<2, i64> at(rows, team.row);
  const Row<T, packs> x(from + at.at[1], x_step, count, team);
  const C top = row_max(x, count, team, &room[0]);
  const C sum = row_sum_exp(x, count, top, team, &room[0]);
  const C log_sum = math::log(sum);
  write<T, packs>(out + at.at[0], out_step, count, team, [&](int slot, i64 i) {
    const C shifted = x.at(slot, i) - top;
    return logarithm ? shifted - log_sum : math::exp(shifted) / sum;
  });
}

// rows: dx, out (the result), g.
template <bool logarithm, class T, int packs>
__global__ void __launch_bounds__(256, 3)
    softmax_grad(T* dx, const T* out, const T* slopes, Geometry<3> rows, i64 threads, i64 count,
                 i64 dx_step, i64 out_step, i64 g_step) {
  using C = Compute<T>;
  SHARED(C, room, [kMaxWarps]);
  const Team team(threads);
  if (team.row >= rows.count) return;
  const Offsets<3, i64> at(rows, team.row);
  const Row<T, packs> y(out + at.at[1], out_step, count, team);
  const Row<T, packs> g(slopes + at.at[2], g_step, count, team);
  C sum = 0;
  each<T, packs>(count, team, [&](int slot, i64 i) {
    sum += logarithm ? g.at(slot, i) : g.at(slot, i) * y.at(slot, i);
  });
  sum = team.over(sum, &room[0], Add());
  write<T, packs>(dx + at.at[0], dx_step, count, team, [&](int slot, i64 i) {
    const C value = y.at(slot, i), slope = g.at(slot, i);
    return logarithm ? slope - math::exp(value) * sum : value * (slope - sum);
  });
}

// Losses of rows of logits [n, classes], and the logarithms of their sums of exponentials: shift +
// rest. rows: logits; labels dense.
template <class T, int packs>
__global__ void __launch_bounds__(256, 3)
    cross_entropy(Compute<T>* loss, Compute<T>* shift, Compute<T>* rests, const T* logits,
                  const i64* labels, Geometry<1> rows, i64 threads, i64 classes, i64 step,
                  i64 ignore, double smoothing, u64* errors, i64 ticket) {
  using C = Compute<T>;
  SHARED(C, room, [kMaxWarps]);
  const Team team(threads);
  if (team.row >= rows.count) return;
  const Offsets<1, i64> at(rows, team.row);
  const Row<T, packs> x(logits + at.at[0], step, classes, team);
  const C most = row_max(x, classes, team, &room[0]);
  const C top = most - most == C(0) ? most : C(0);  // infinity less infinity would be NaN
  const C rest = math::log(row_sum_exp(x, classes, top, team, &room[0]));
  C sum = 0;
  if (smoothing > 0) {
    each<T, packs>(classes, team, [&](int slot, i64 i) { sum += top - x.at(slot, i); });
    sum = team.over(sum, &room[0], Add());
  }
  if (team.member) return;
  const i64 label = labels[team.row];
  shift[team.row] = rest == rest ? top : C(0);  // the maximum may pass over NaN
  rests[team.row] = rest;
  C result = 0;
  if (label != ignore) {
    if (label < 0 || label >= classes) {
      atomicMin(errors, static_cast<u64>(ticket) << kPositionBits | team.row);
      return;
    }
    // top + rest has lost digits far from 0
    result = rest + (top - widen(logits[at.at[0] + label * step]));
    const C s = static_cast<C>(smoothing);
    if (smoothing > 0) result = (1 - s) * result + s * (rest + sum / static_cast<C>(classes));
  }
  loss[team.row] = result;
}

// dlogits = g (softmax - target). rows: dlogits, logits.
template <class T, int packs>
__global__ void __launch_bounds__(256, 3)
    cross_entropy_grad(T* dlogits, const Compute<T>* g, const T* logits, const i64* labels,
                       const Compute<T>* shift, const Compute<T>* rests, Geometry<2> rows,
                       i64 threads, i64 classes, i64 out_step, i64 step, i64 ignore,
                       double smoothing) {
  using C = Compute<T>;
  const Team team(threads);
  if (team.row >= rows.count) return;
  const Offsets<2, i64> at(rows, team.row);
  const Row<T, packs> x(logits + at.at[1], step, classes, team);
  const i64 label = labels[team.row];
  const C slope = g[team.row], top = shift[team.row], rest = rests[team.row];
  const C s = static_cast<C>(smoothing);
  const C everywhere = s / static_cast<C>(classes);
  write<T, packs>(dlogits + at.at[0], out_step, classes, team, [&](int slot, i64 i) {
    const C target = everywhere + (i == label ? 1 - s : C(0));
    const C value = slope * (math::exp((x.at(slot, i) - top) - rest) - target);
    return label == ignore ? C(0) : value;
  });
}
