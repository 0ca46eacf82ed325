// Matrix products of 16-bit floats on tensor cores, summed in float32. A block computes 128 x 128
// elements, each of its eight warps 32 x 64 of them. Tiles lie in shared memory as the operands lie
// in memory, so that both are copied in pieces of 16 bytes where addresses allow it (`wide`).
#include "prelude.cuh"

#ifdef NEEDLE_EMULATOR
#include "mma_emu.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#endif

using namespace nvcuda;

struct Sizes {
  i64 m, n, k;
  i64 a_row, a_column, b_row, b_column, out_row, out_column;
};

template <class T>
using Native = typename Choose<is_same<T, bf16>, __nv_bfloat16, __half>::type;

constexpr int kBlock = 128, kDepth = 32, kThreads = 256, kFragment = 16, kWide = 8;
constexpr int kWarpRows = 2, kWarpColumns = 4;  // fragments of a warp

// One operand's tile, `across` x depth, dense along depth (deep) or across.
template <class T, bool deep, bool wide>
struct TileOf {
  static constexpr int kLine = deep ? kDepth : kBlock, kLines = deep ? kBlock : kDepth;
  static constexpr int kPitch = kLine + kWide;  // keeps 16-byte pieces, spreads lines over banks
  static constexpr int kEach = kBlock * kDepth / (wide ? kWide : 1) / kThreads;
  static constexpr int kPieces = wide ? kLine / kWide : kLine;
  using Piece = typename Choose<wide, Pack<T, kWide>, T>::type;
  Piece held[kEach];

  // source: the block's first element at k = 0; across_end: how many lines or columns there are.
  __device__ void fetch(const T* source, i64 across_step, i64 depth_step, i64 across_end, i64 k0,
                        i64 k_end) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * kThreads;
      const int line = e / kPieces, along = e % kPieces * (wide ? kWide : 1);
      const i64 across = deep ? line : along, k = k0 + (deep ? along : line);
      const bool inside = across < across_end && k < k_end;
      held[i] =
          inside ? *reinterpret_cast<const Piece*>(source + across * across_step + k * depth_step)
                 : Piece{};
    }
  }
  __device__ void store(T* tile) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * kThreads;
      const int line = e / kPieces, along = e % kPieces * (wide ? kWide : 1);
      *reinterpret_cast<Piece*>(tile + line * kPitch + along) = held[i];
    }
  }
  // Where the fragment at (across, k) starts.
  static __device__ const T* at(const T* tile, int across, int k) {
    return tile + (deep ? across * kPitch + k : k * kPitch + across);
  }
};

// Where 128 registers are nearly enough, say so: two blocks then fit on a multiprocessor.
template <class T, bool a_deep, bool b_deep, bool wide>
__global__ void __launch_bounds__(kThreads, a_deep && b_deep && wide ? 2 : 0)
    matmul_tc(T* out, const T* a, const T* b, Sizes s, Geometry<3> batches) {
  using A = TileOf<T, a_deep, wide>;
  using B = TileOf<T, b_deep, wide>;
  using ALayout = typename Choose<a_deep, wmma::row_major, wmma::col_major>::type;
  using BLayout = typename Choose<b_deep, wmma::col_major, wmma::row_major>::type;
  using N = Native<T>;
  constexpr int kA = A::kLines * A::kPitch, kB = B::kLines * B::kPitch;
  SHARED(T, tiles, [2 * (kA + kB)]);
  static_assert(sizeof(T) * 2 * (kA + kB) >= 8 * 256 * sizeof(float), "results pass through tiles");
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / 2 * (kWarpRows * kFragment);
  const int warp_column = warp % 2 * (kWarpColumns * kFragment);
  const i64 row0 = static_cast<i64>(blockIdx.x) * kBlock;
  const i64 column0 = static_cast<i64>(blockIdx.y) * kBlock;

  for (i64 batch = blockIdx.z; batch < batches.count; batch += gridDim.z) {
    const Offsets<3, i64> at(batches, batch);
    const T* a_source = a + at.at[1] + row0 * s.a_row;
    const T* b_source = b + at.at[2] + column0 * s.b_column;
    A a_loader;
    B b_loader;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[kWarpRows][kWarpColumns];
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i)
#pragma unroll
      for (int j = 0; j < kWarpColumns; ++j) wmma::fill_fragment(sums[i][j], 0.0f);

    a_loader.fetch(a_source, s.a_row, s.a_column, s.m - row0, 0, s.k);
    b_loader.fetch(b_source, s.b_column, s.b_row, s.n - column0, 0, s.k);
    int now = 0;
    for (i64 k0 = 0; k0 < s.k; k0 += kDepth) {
      T *a_tile = &tiles[now * (kA + kB)], *b_tile = a_tile + kA;
      a_loader.store(a_tile);
      b_loader.store(b_tile);
      __syncthreads();
      if (k0 + kDepth < s.k) {
        a_loader.fetch(a_source, s.a_row, s.a_column, s.m - row0, k0 + kDepth, s.k);
        b_loader.fetch(b_source, s.b_column, s.b_row, s.n - column0, k0 + kDepth, s.k);
      }
#pragma unroll
      for (int k = 0; k < kDepth; k += kFragment) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, N, ALayout> x[kWarpRows];
#pragma unroll
        for (int i = 0; i < kWarpRows; ++i)
          wmma::load_matrix_sync(
              x[i], reinterpret_cast<const N*>(A::at(a_tile, warp_row + i * kFragment, k)),
              A::kPitch);
#pragma unroll
        for (int j = 0; j < kWarpColumns; ++j) {
          wmma::fragment<wmma::matrix_b, 16, 16, 16, N, BLayout> y;
          wmma::load_matrix_sync(
              y, reinterpret_cast<const N*>(B::at(b_tile, warp_column + j * kFragment, k)),
              B::kPitch);
#pragma unroll
          for (int i = 0; i < kWarpRows; ++i) wmma::mma_sync(sums[i][j], x[i], y, sums[i][j]);
        }
      }
      now ^= 1;
    }

    __syncthreads();  // the tiles are free: fragments pass through them on their way out
    float* room = reinterpret_cast<float*>(&tiles[0]) + warp * (kFragment * kFragment);
#pragma unroll  // fragments stay in registers
    for (int i = 0; i < kWarpRows; ++i) {
#pragma unroll
      for (int j = 0; j < kWarpColumns; ++j) {
        wmma::store_matrix_sync(room, sums[i][j], kFragment, wmma::mem_row_major);
        __syncwarp();
        for (int e = lane; e < kFragment * kFragment; e += 32) {
          const i64 row = row0 + warp_row + i * kFragment + e / kFragment;
          const i64 column = column0 + warp_column + j * kFragment + e % kFragment;
          if (row < s.m && column < s.n)
            out[at.at[0] + row * s.out_row + column * s.out_column] = cast<T>(room[e]);
        }
        __syncwarp();
      }
    }
    __syncthreads();
  }
}
