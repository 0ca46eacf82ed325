// Softmax and cross entropy: a block per row, which after the first pass is in the cache.
#include "rows.cuh"

constexpr int kPositionBits = 40;  // see index.cu

template <class C>
__device__ inline C minus_infinity() {
  return -C(1) / C(0);
}

template <class T, class C>
__device__ inline C row_max(const T* x, i64 count, i64 step, C* room) {
  C top = minus_infinity<C>();
  for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
    const C value = widen(x[i * step]);
    top = value > top ? value : top;
  }
  return over_block(top, room, Larger());
}

template <class T, class C>
__device__ inline C row_sum_exp(const T* x, i64 count, i64 step, C top, C* room) {
  C sum = 0;
  for (i64 i = threadIdx.x; i < count; i += blockDim.x) sum += math::exp(widen(x[i * step]) - top);
  return over_block(sum, room, Add());
}

// rows: out, x without the axis. (Two blocks: see elementwise.cu.)
template <bool logarithm, class T>
__global__ void __launch_bounds__(256, 2)
    softmax(T* out, const T* x, Geometry<2> rows, i64 count, i64 out_step, i64 x_step) {
  using C = Compute<T>;
  SHARED(C, room, [kMaxWarps]);
  const Offsets<2, i64> at(rows, blockIdx.x);
  out += at.at[0];
  x += at.at[1];
  const C top = row_max(x, count, x_step, &room[0]);
  const C sum = row_sum_exp(x, count, x_step, top, &room[0]);
  const C log_sum = math::log(sum);
  for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
    const C shifted = widen(x[i * x_step]) - top;
    out[i * out_step] = cast<T>(logarithm ? shifted - log_sum : math::exp(shifted) / sum);
  }
}

// rows: dx, out (the result), g.
template <bool logarithm, class T>
__global__ void __launch_bounds__(256)
    softmax_grad(T* dx, const T* out, const T* g, Geometry<3> rows, i64 count, i64 dx_step,
                 i64 out_step, i64 g_step) {
  using C = Compute<T>;
  SHARED(C, room, [kMaxWarps]);
  const Offsets<3, i64> at(rows, blockIdx.x);
  dx += at.at[0];
  out += at.at[1];
  g += at.at[2];
  C sum = 0;
  for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
    const C slope = widen(g[i * g_step]);
    sum += logarithm ? slope : slope * widen(out[i * out_step]);
  }
  sum = over_block(sum, &room[0], Add());
  for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
    const C y = widen(out[i * out_step]), slope = widen(g[i * g_step]);
    dx[i * dx_step] = cast<T>(logarithm ? slope - math::exp(y) * sum : y * (slope - sum));
  }
}

// Losses and log-sum-exps of rows of logits [n, classes]. rows: logits; labels dense.
template <class T>
__global__ void __launch_bounds__(256)
    cross_entropy(Compute<T>* loss, Compute<T>* lse, const T* logits, const i64* labels,
                  Geometry<1> rows, i64 classes, i64 step, i64 ignore, double smoothing,
                  u64* errors, i64 ticket) {
  using C = Compute<T>;
  SHARED(C, room, [kMaxWarps]);
  const Offsets<1, i64> at(rows, blockIdx.x);
  const T* x = logits + at.at[0];
  const C most = row_max(x, classes, step, &room[0]);
  const C top = most - most == C(0) ? most : C(0);  // infinity less infinity would be NaN
  const C rest = math::log(row_sum_exp(x, classes, step, top, &room[0]));
  C sum = 0;
  if (smoothing > 0) {
    for (i64 i = threadIdx.x; i < classes; i += blockDim.x) sum += top - widen(x[i * step]);
    sum = over_block(sum, &room[0], Add());
  }
  if (threadIdx.x) return;
  const i64 label = labels[blockIdx.x];
  lse[blockIdx.x] = top + rest;
  C result = 0;
  if (label != ignore) {
    if (label < 0 || label >= classes) {
      atomicMin(errors, static_cast<u64>(ticket) << kPositionBits | blockIdx.x);
      return;
    }
    result = rest + (top - widen(x[label * step]));  // top + rest has lost digits far from 0
    const C s = static_cast<C>(smoothing);
    if (smoothing > 0) result = (1 - s) * result + s * (rest + sum / static_cast<C>(classes));
  }
  loss[blockIdx.x] = result;
}

// dlogits = g (softmax - target). rows: dlogits, logits.
template <class T>
__global__ void __launch_bounds__(256)
    cross_entropy_grad(T* dlogits, const Compute<T>* g, const T* logits, const i64* labels,
                       const Compute<T>* lse, Geometry<2> rows, i64 classes, i64 out_step, i64 step,
                       i64 ignore, double smoothing) {
  using C = Compute<T>;
  const Offsets<2, i64> at(rows, blockIdx.x);
  T* out = dlogits + at.at[0];
  const T* x = logits + at.at[1];
  const i64 label = labels[blockIdx.x];
  const C slope = g[blockIdx.x], total = lse[blockIdx.x], s = static_cast<C>(smoothing);
  const C everywhere = s / static_cast<C>(classes);
  for (i64 i = threadIdx.x; i < classes; i += blockDim.x) {
    const C target = everywhere + (i == label ? 1 - s : C(0));
    const C value = slope * (math::exp(widen(x[i * step]) - total) - target);
    out[i * out_step] = cast<T>(label == ignore ? C(0) : value);
  }
}
