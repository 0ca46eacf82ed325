// Shared by kernels of rows: a team of threads for each row, sums and maxima over the team.
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

// The threads of a row: a warp, of several in the block; or the whole block.
struct Team {
  int size, member;
  i64 row;

  __device__ explicit Team(i64 threads) {
    size = static_cast<int>(threads);
    member = static_cast<int>(threadIdx.x) % size;
    row = static_cast<i64>(blockIdx.x) * (blockDim.x / size) + threadIdx.x / size;
  }

  // The values of all threads joined, always in the same order; every thread gets the result.
  // `room` has one value for each warp of the block.
  template <class C, class Join>
  __device__ C over(C value, C* room, Join join) const {
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2)
      value = join(value, __shfl_xor_sync(kAllLanes, value, bit));
    const int warps = size / 32;
    if (warps == 1) return value;
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
    __syncthreads();
    value = room[0];
    for (int warp = 1; warp < warps; ++warp) value = join(value, room[warp]);
    __syncthreads();  // before `room` is used again
    return value;
  }
};

// A thread's part of a row. With `packs`, so many pieces of 16 bytes, read once and held: the row
// is dense, starts on 16 bytes and ends on them. Else the elements are read each time.
template <class T, int packs>
struct Row {
  static constexpr int kWidth = 16 / sizeof(T);
  const T* x;
  i64 step;
  Compute<T> held[packs ? packs * kWidth : 1];

  __device__ Row(const T* first, i64 between, i64 count, const Team& team)
      : x(first), step(between) {
#pragma unroll
    for (int pack = 0; pack < packs; ++pack) {
      const int i = place(pack, team);
      if (i < count) {
        const auto values = *reinterpret_cast<const Pack<T, kWidth>*>(x + i);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) held[pack * kWidth + j] = widen(values.v[j]);
      }
    }
  }
  static __device__ int place(int pack, const Team& team) {
    return (pack * team.size + team.member) * kWidth;
  }
  // The element at i of the row, which is the thread's so-maniest.
  __device__ Compute<T> at(int slot, i64 i) const {
    if constexpr (packs) {
      return held[slot];
    } else {
      return widen(x[i * step]);
    }
  }
};

// Calls visit(slot, i) for each element i of the thread's.
template <class T, int packs, class Visit>
__device__ inline void each(i64 count, const Team& team, Visit visit) {
  if constexpr (packs) {
    constexpr int kWidth = Row<T, packs>::kWidth;
#pragma unroll
    for (int pack = 0; pack < packs; ++pack) {
      const int i = Row<T, packs>::place(pack, team);
      if (i < count)
#pragma unroll
        for (int j = 0; j < kWidth; ++j) visit(pack * kWidth + j, static_cast<i64>(i + j));
    }
  } else {
    for (i64 i = team.member; i < count; i += team.size) visit(0, i);
  }
}

// Writes value(slot, i) to each place i of a row.
template <class T, int packs, class Value>
__device__ inline void write(T* out, i64 step, i64 count, const Team& team, Value value) {
  if constexpr (packs) {
    constexpr int kWidth = Row<T, packs>::kWidth;
#pragma unroll
    for (int pack = 0; pack < packs; ++pack) {
      const int i = Row<T, packs>::place(pack, team);
      if (i < count) {
        Pack<T, kWidth> values;
#pragma unroll
        for (int j = 0; j < kWidth; ++j)
          values.v[j] = cast<T>(value(pack * kWidth + j, static_cast<i64>(i + j)));
        *reinterpret_cast<Pack<T, kWidth>*>(out + i) = values;
      }
    }
  } else {
    each<T, packs>(count, team, [&](int slot, i64 i) { out[i * step] = cast<T>(value(slot, i)); });
  }
}
