// Matrix products of operands with any strides. A block computes a tile of the result, a thread
// TM x TN elements of it in registers; tiles of the operands pass through shared memory, the next
// ones on their way while the present ones are multiplied.
#include "prelude.cuh"

// The type of sums of products; integers wrap around.
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
// k (deep) or across, whichever has its elements side by side.
template <class T, int across, int BK, int threads, bool deep>
struct Loader {
  using S = Sum<T>;
  static constexpr int kEach = across * BK / threads;
  static constexpr int kPitch = across + 16 / sizeof(S);  // spreads columns over the banks
  static constexpr int kStepAcross = deep ? threads / BK : 0;
  static constexpr int kStepK = deep ? 0 : threads / across;
  const T* own;  // this thread's first element of the next tile
  i64 step, advance;
  int at, k, left;
  T held[kEach];

  __device__ Loader(const T* p, i64 step_across, i64 step_k, i64 first, i64 end) {
    at = deep ? threadIdx.x / BK : threadIdx.x % across;
    k = deep ? threadIdx.x % BK : threadIdx.x / across;
    own = p + (first + at) * step_across + k * step_k;
    step = deep ? kStepAcross * step_across : kStepK * step_k;
    advance = BK * step_k;
    left = static_cast<int>(end - first < across ? end - first : across);
  }
  __device__ void fetch(i64 k_left) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool inside = at + i * kStepAcross < left && k + i * kStepK < k_left;
      held[i] = inside ? own[i * step] : T{};
    }
    own += advance;
  }
  __device__ void store(S (*tile)[kPitch]) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      tile[k + i * kStepK][at + i * kStepAcross] = static_cast<S>(widen(held[i]));
  }
};

template <class T, int BM, int BN, int BK, int TM, int TN, bool a_deep, bool b_deep>
__global__ void __launch_bounds__((BM / TM) * (BN / TN), (BM == 128             ? 256
                                                          : sizeof(Sum<T>) == 8 ? 384
                                                                                : 512) /
                                                             ((BM / TM) * (BN / TN)))
    matmul(T* out, const T* a, const T* b, Sizes s, Geometry<3> batches) {
  using S = Sum<T>;
  constexpr int kThreads = (BM / TM) * (BN / TN), kVector = 16 / sizeof(S);
  constexpr int kRowGroups = TM / kVector, kColumnGroups = TN / kVector;
  using ALoader = Loader<T, BM, BK, kThreads, a_deep>;
  using BLoader = Loader<T, BN, BK, kThreads, b_deep>;
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

    a_loader.fetch(s.k);
    b_loader.fetch(s.k);
    int now = 0;
    for (i64 k0 = 0; k0 < s.k; k0 += BK) {
      a_loader.store(a_tile[now]);
      b_loader.store(b_tile[now]);
      __syncthreads();
      if (k0 + BK < s.k) {
        a_loader.fetch(s.k - k0 - BK);
        b_loader.fetch(s.k - k0 - BK);
      }
// Of a large tile one block fits on a multiprocessor at any rate: registers are free to hold what
// is needed next. Others have room for more blocks.
#pragma unroll(BM == 128 ? BK : 2)
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
