// What kernels with a block per row share: sums and maxima over the block.
#pragma once
#include "math.cuh"

constexpr int kMaxWarps = 8;

struct Add {
  template <class C>
  __device__ C operator()(C x, C y) const {
    return x + y;
  }
};
struct Larger {
  template <class C>
  __device__ C operator()(C x, C y) const {
    return x > y ? x : y;
  }
};

// The values of all threads joined, always in the same order; every thread gets the result. The
// block has whole warps, `room` one value for each.
template <class C, class Join>
__device__ inline C over_block(C value, C* room, Join join) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) value = join(value, __shfl_xor_sync(kAllLanes, value, bit));
  const int warps = blockDim.x / 32;
  if (warps == 1) return value;
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();
  value = room[0];
  for (int warp = 1; warp < warps; ++warp) value = join(value, room[warp]);
  __syncthreads();  // before `room` is used again
  return value;
}
