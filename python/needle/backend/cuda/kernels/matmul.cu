// Matrix products of operands with any strides. A block computes a tile of the result, a thread
// TM x TN elements of it in registers; tiles of the operands pass through shared memory, the next
// ones on their way while the present ones are multiplied.
#include "prelude.cuh"

// What products are added up in; integers wrap around.
template <class T>
using Sum = typename Choose<Traits<T>::is_floating, Compute<T>,
                            typename Choose<sizeof(T) == 8, u64, u32>::type>::type;

__device__ inline float multiply_add(float x, float y, float z) { return fmaf(x, y, z); }
__device__ inline double multiply_add(double x, double y, double z) { return fma(x, y, z); }
__device__ inline u32 multiply_add(u32 x, u32 y, u32 z) { return x * y + z; }
__device__ inline u64 multiply_add(u64 x, u64 y, u64 z) { return x * y + z; }

struct Sizes {
  i64 m, n, k;
  i64 a_row, a_column, b_row, b_column, out_row, out_column;
};

// One operand's tile: `across` (rows of a, columns of b) times BK. Neighbouring threads read along
// the axis whose elements are neighbours.
template <class T, int across, int BK, int threads>
struct Loader {
  using S = Sum<T>;
  static constexpr int kEach = across * BK / threads;
  static constexpr int kPitch = across + 16 / sizeof(S);  // spreads columns over the banks
  const T* source;
  i64 step_across, step_k, left_across;
  bool k_first;
  S held[kEach];

  __device__ Loader(const T* p, i64 step, i64 k_step, i64 first, i64 end)
      : source(p + first * step), step_across(step), step_k(k_step), left_across(end - first) {
    k_first = k_step == 1;
  }
  __device__ void place(int i, int& at, int& k) const {
    const int e = static_cast<int>(threadIdx.x) + i * threads;
    at = k_first ? e / BK : e % across;
    k = k_first ? e % BK : e / across;
  }
  __device__ void fetch(i64 k0, i64 k_end) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      int at, k;
      place(i, at, k);
      const bool inside = at < left_across && k0 + k < k_end;
      held[i] = inside ? static_cast<S>(widen(source[at * step_across + (k0 + k) * step_k])) : S(0);
    }
  }
  __device__ void store(S (*tile)[kPitch]) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      int at, k;
      place(i, at, k);
      tile[k][at] = held[i];
    }
  }
};

template <class T, int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__((BM / TM) * (BN / TN))
    matmul(T* out, const T* a, const T* b, Sizes s, Geometry<3> batches) {
  using S = Sum<T>;
  constexpr int kThreads = (BM / TM) * (BN / TN), kVector = 16 / sizeof(S);
  constexpr int kRowGroups = TM / kVector, kColumnGroups = TN / kVector;
  using ALoader = Loader<T, BM, BK, kThreads>;
  using BLoader = Loader<T, BN, BK, kThreads>;
  SHARED(S, a_tile, [2][BK][ALoader::kPitch]);
  SHARED(S, b_tile, [2][BK][BLoader::kPitch]);
  const int tx = threadIdx.x % (BN / TN), ty = threadIdx.x / (BN / TN);
  const i64 row0 = static_cast<i64>(blockIdx.x) * BM, column0 = static_cast<i64>(blockIdx.y) * BN;

  for (i64 batch = blockIdx.z; batch < batches.count; batch += gridDim.z) {
    const Offsets<3, i64> at(batches, batch);
    ALoader a_loader(a + at.at[1], s.a_row, s.a_column, row0, s.m);
    BLoader b_loader(b + at.at[2], s.b_column, s.b_row, column0, s.n);
    S sums[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) sums[i][j] = 0;

    a_loader.fetch(0, s.k);
    b_loader.fetch(0, s.k);
    int now = 0;
    for (i64 k0 = 0; k0 < s.k; k0 += BK) {
      a_loader.store(a_tile[now]);
      b_loader.store(b_tile[now]);
      __syncthreads();
      if (k0 + BK < s.k) {
        a_loader.fetch(k0 + BK, s.k);
        b_loader.fetch(k0 + BK, s.k);
      }
#pragma unroll
      for (int k = 0; k < BK; ++k) {
        Pack<S, kVector> x[kRowGroups], y[kColumnGroups];
#pragma unroll
        for (int g = 0; g < kRowGroups; ++g)
          x[g] = *reinterpret_cast<const Pack<S, kVector>*>(
              &a_tile[now][k][g * (BM / kRowGroups) + ty * kVector]);
#pragma unroll
        for (int g = 0; g < kColumnGroups; ++g)
          y[g] = *reinterpret_cast<const Pack<S, kVector>*>(
              &b_tile[now][k][g * (BN / kColumnGroups) + tx * kVector]);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int j = 0; j < TN; ++j)
            sums[i][j] = multiply_add(x[i / kVector].v[i % kVector], y[j / kVector].v[j % kVector],
                                      sums[i][j]);
      }
      now ^= 1;  // the other tile was last read before the barrier
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const i64 row = row0 + i / kVector * (BM / kRowGroups) + ty * kVector + i % kVector;
      if (row >= s.m) continue;
      T* line = out + at.at[0] + row * s.out_row;
#pragma unroll
      for (int j = 0; j < TN; ++j) {
        const i64 column =
            column0 + j / kVector * (BN / kColumnGroups) + tx * kVector + j % kVector;
        if (column < s.n) line[column * s.out_column] = cast<T>(sums[i][j]);
      }
    }
    __syncthreads();  // before the next batch writes the tiles
  }
}
