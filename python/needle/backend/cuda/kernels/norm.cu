// Layer norm, RMS norm (rows: see rows.cuh) and batch norm (sums over columns). Rows are dense.
#include "rows.cuh"

__device__ inline float inverse_root(float x) { return 1 / sqrtf(x); }
__device__ inline double inverse_root(double x) { return 1 / sqrt(x); }

// centred: layer norm, else RMS norm. threads: of a row.
template <bool centred, class T, int packs>
__global__ void __launch_bounds__(256, 3)
    layer_norm(T* out, Compute<T>* means, Compute<T>* rstds, const T* from, const T* weights,
               const T* biases, i64 rows, i64 threads, i64 d, double eps) {
  using C = Compute<T>;
  SHARED(C, room, [kMaxWarps]);
  const Team team(threads);
  if (team.row >= rows) return;
  const Row<T, packs> x(from + team.row * d, 1, d, team);
  C mean = 0;
  if (centred) {
    each<T, packs>(d, team, [&](int slot, i64 i) { mean += x.at(slot, i); });
    mean = team.over(mean, &room[0], Add()) / static_cast<C>(d);
  }
  C squares = 0;
  each<T, packs>(d, team, [&](int slot, i64 i) {
    const C value = x.at(slot, i) - mean;
    squares += value * value;
  });
  squares = team.over(squares, &room[0], Add());
  C rstd = inverse_root(squares / static_cast<C>(d) + static_cast<C>(eps));
  if (!(squares < highest<C>())) {  // those of smaller numbers have a sum
    const C scale = sizeof(C) == 8 ? static_cast<C>(0x1p-600) : static_cast<C>(0x1p-100);
    C sum = 0;
    if (centred) {
      each<T, packs>(d, team, [&](int slot, i64 i) { sum += x.at(slot, i) * scale; });
      sum = team.over(sum, &room[0], Add()) / static_cast<C>(d);
    }
    squares = 0;
    each<T, packs>(d, team, [&](int slot, i64 i) {
      const C value = x.at(slot, i) * scale - sum;
      squares += value * value;
    });
    squares = team.over(squares, &room[0], Add());
    rstd = inverse_root(squares / static_cast<C>(d)) * scale;
    mean = sum / scale;
  }
  const Row<T, packs> weight(weights, 1, d, team), bias(biases, 1, d, team);
  write<T, packs>(out + team.row * d, 1, d, team, [&](int slot, i64 i) {
    const C scaled = (x.at(slot, i) - mean) * rstd * weight.at(slot, i);
    return centred ? scaled + bias.at(slot, i) : scaled;
  });
  if (team.member) return;
  rstds[team.row] = rstd;
  if (centred) means[team.row] = mean;
}

template <bool centred, class T, int packs>
__global__ void __launch_bounds__(256, sizeof(T) == 8 ? 2 : 3)
    layer_norm_grad(T* dx, const T* slopes, const T* from, const T* weights,
                    const Compute<T>* means, const Compute<T>* rstds, i64 rows, i64 threads,
                    i64 d) {
  using C = Compute<T>;
  SHARED(C, room, [kMaxWarps]);
  const Team team(threads);
  if (team.row >= rows) return;
  const i64 first = team.row * d;
  const Row<T, packs> g(slopes + first, 1, d, team), x(from + first, 1, d, team);
  const Row<T, packs> weight(weights, 1, d, team);
  const C mean = centred ? means[team.row] : C(0), rstd = rstds[team.row];
  C sum = 0, along = 0;
  each<T, packs>(d, team, [&](int slot, i64 i) {
    const C scaled = g.at(slot, i) * weight.at(slot, i);
    sum += scaled;
    along += scaled * (x.at(slot, i) - mean) * rstd;
  });
  along = team.over(along, &room[0], Add()) / static_cast<C>(d);
  sum = centred ? team.over(sum, &room[0], Add()) / static_cast<C>(d) : C(0);
  write<T, packs>(dx + first, 1, d, team, [&](int slot, i64 i) {
    const C scaled = g.at(slot, i) * weight.at(slot, i);
    const C normal = (x.at(slot, i) - mean) * rstd;
    return rstd * (scaled - sum - normal * along);
  });
}

// ---- sums over columns ------------------------------------------------------------------------

// What is summed: two numbers of each element. `rows` and `columns` hold what a norm has computed
// for each row or column.
struct Values {  // for means
  template <class C>
  static __device__ void of(C x, C, C, C, C& first, C&) {
    first += x;
  }
};
struct Squares {  // for variances
  template <class C>
  static __device__ void of(C x, C, C mean, C, C& first, C&) {
    first += (x - mean) * (x - mean);
  }
};
struct Slopes {  // for gradients of weight and bias
  template <class C>
  static __device__ void of(C x, C g, C mean, C rstd, C& first, C& second) {
    first += g * ((x - mean) * rstd);
    second += g;
  }
};

constexpr int kAcross = 32, kDown = 8;

// Adds up the sums of the threads of a column, for the first of them.
template <class C>
__device__ inline void join_down(C& first, C& second, C (*sums)[kDown][kAcross], int across,
                                 int down) {
  sums[0][down][across] = first;
  sums[1][down][across] = second;
  __syncthreads();
  if (down) return;
  for (int i = 1; i < kDown; ++i) {
    first += sums[0][i][across];
    second += sums[1][i][across];
  }
}

// parts: [grid.y, 2, d]. means and rstds belong to rows (by_row) or columns; either may be null.
template <class F, bool by_row, class T>
__global__ void __launch_bounds__(kAcross* kDown)
    column_sums(Compute<T>* parts, const T* x, const T* g, const Compute<T>* means,
                const Compute<T>* rstds, i64 rows, i64 d, i64 part) {
  using C = Compute<T>;
  SHARED(C, sums, [2][kDown][kAcross]);
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const i64 column = static_cast<i64>(blockIdx.x) * kAcross + across;
  C first = 0, second = 0;
  if (column < d) {
    const i64 begin = blockIdx.y * part, end = begin + part < rows ? begin + part : rows;
#pragma unroll 4
    for (i64 row = begin + down; row < end; row += kDown) {
      const i64 i = row * d + column, own = by_row ? row : column;
      F::of(widen(x[i]), g ? widen(g[i]) : C(0), means ? means[own] : C(0),
            rstds ? rstds[own] : C(1), first, second);
    }
  }
  join_down(first, second, sums, across, down);
  if (down || column >= d) return;
  parts[(2 * static_cast<i64>(blockIdx.y)) * d + column] = first;
  parts[(2 * static_cast<i64>(blockIdx.y) + 1) * d + column] = second;
}

// Joins the parts: sums [2, d] times `scale`, and the same as T in `first` and `second` (or null).
template <class T>
__global__ void __launch_bounds__(kAcross* kDown)
    column_finish(Compute<T>* sums, T* first, T* second, const Compute<T>* parts, i64 count, i64 d,
                  double scale) {
  using C = Compute<T>;
  SHARED(C, room, [2][kDown][kAcross]);
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const i64 column = static_cast<i64>(blockIdx.x) * kAcross + across;
  C a = 0, b = 0;
  if (column < d) {
#pragma unroll 4
    for (i64 i = down; i < count; i += kDown) {
      a += parts[2 * i * d + column];
      b += parts[(2 * i + 1) * d + column];
    }
  }
  join_down(a, b, room, across, down);
  if (down || column >= d) return;
  sums[column] = a * static_cast<C>(scale);
  sums[d + column] = b * static_cast<C>(scale);
  if (first) first[column] = cast<T>(a);
  if (second) second[column] = cast<T>(b);
}

// rstd = 1 / sqrt(var + eps)
template <class T>
__global__ void __launch_bounds__(256)
    reciprocal_deviation(Compute<T>* rstd, const Compute<T>* var, i64 d, double eps) {
  const i64 i = position_in_grid<i64>();
  if (i < d) rstd[i] = inverse_root(var[i] + static_cast<Compute<T>>(eps));
}

// The column of an element; division of 64 bits takes many times as long.
__device__ inline i64 column_of(i64 i, i64 count, i64 d) {
  return count <= 0xffffffffll ? static_cast<u32>(i) % static_cast<u32>(d) : i % d;
}

// residual: of x's shape, or null.
template <bool rectified, class T>
__global__ void __launch_bounds__(256)
    batch_norm(T* out, const T* x, const T* weight, const T* bias, const Compute<T>* mean,
               const Compute<T>* rstd, const T* residual, i64 count, i64 d) {
  const i64 i = position_in_grid<i64>();
  if (i >= count) return;
  const i64 c = column_of(i, count, d);
  auto value = (widen(x[i]) - mean[c]) * (rstd[c] * widen(weight[c])) + widen(bias[c]);
  if (residual) value += widen(residual[i]);
  if (rectified && value < 0) value = 0;
  out[i] = cast<T>(value);
}

// means: [2, d], of g times the normalised x, and of g.
template <class T>
__global__ void __launch_bounds__(256)
    batch_norm_grad(T* dx, const T* g, const T* x, const T* weight, const Compute<T>* mean,
                    const Compute<T>* rstd, const Compute<T>* means, i64 count, i64 d) {
  const i64 i = position_in_grid<i64>();
  if (i >= count) return;
  const i64 c = column_of(i, count, d);
  const Compute<T> normal = (widen(x[i]) - mean[c]) * rstd[c];
  dx[i] = cast<T>(widen(weight[c]) * rstd[c] * (widen(g[i]) - means[d + c] - normal * means[c]));
}
