// Copies with casts, constants, random bits.
#include "prelude.cuh"

// Operands of any strides, an element per thread.
template <class To, class From, class Index>
__global__ void __launch_bounds__(256) copy(To* out, const From* x, Geometry<2> g) {
  const Index i = position_in_grid<Index>();
  if (i >= static_cast<Index>(g.count)) return;
  const Offsets<2, Index> offsets(g, i);
  out[offsets.at[0]] = cast<To>(x[offsets.at[1]]);
}

// Dense operands on 16-byte boundaries.
template <class To, class From, int width>
__global__ void __launch_bounds__(256) copy_dense(To* out, const From* x, i64 count) {
  const i64 part = position_in_grid<i64>();
  if (part * width + width > count) {
    for (i64 i = part * width; i < count; ++i) out[i] = cast<To>(x[i]);
    return;
  }
  const auto values = reinterpret_cast<const Pack<From, width>*>(x)[part];
  Pack<To, width> result;
#pragma unroll
  for (int i = 0; i < width; ++i) result.v[i] = cast<To>(values.v[i]);
  reinterpret_cast<Pack<To, width>*>(out)[part] = result;
}

// A matrix whose axes change places: x[c, r] with rows dense in x, columns dense in out. Tiles pass
// through shared memory, so that both sides are read and written in whole lines. Batches: grid.z.
constexpr int kTile = 32;
template <class T>
__global__ void __launch_bounds__(256)
    transpose(T* out, const T* x, i64 rows, i64 columns, i64 x_step, i64 out_step, i64 x_batch,
              i64 out_batch) {
  SHARED(T, tile, [kTile][kTile + 1]);
  x += blockIdx.z * x_batch;
  out += blockIdx.z * out_batch;
  const i64 row0 = static_cast<i64>(blockIdx.y) * kTile;
  const i64 column0 = static_cast<i64>(blockIdx.x) * kTile;
  const int lane = threadIdx.x % kTile, line = threadIdx.x / kTile;
  for (int i = line; i < kTile; i += 256 / kTile)
    if (column0 + i < columns && row0 + lane < rows)
      tile[i][lane] = x[(column0 + i) * x_step + row0 + lane];
  __syncthreads();
  for (int i = line; i < kTile; i += 256 / kTile)
    if (row0 + i < rows && column0 + lane < columns)
      out[(row0 + i) * out_step + column0 + lane] = tile[lane][i];
}

// value: the element's bits.
template <class T, class Index>
__global__ void __launch_bounds__(256) fill(T* out, i64 value, Geometry<1> g) {
  const Index i = position_in_grid<Index>();
  if (i >= static_cast<Index>(g.count)) return;
  const Offsets<1, Index> offsets(g, i);
  out[offsets.at[0]] = static_cast<T>(value);
}

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011):
// words 4 i ... 4 i + 3 are a function of the key and counter + i alone.
__global__ void __launch_bounds__(256) random_bits(u32* out, i64 words, u64 key, u64 counter) {
  const i64 block = position_in_grid<i64>();
  if (4 * block >= words) return;
  const u64 place = counter + static_cast<u64>(block);
  u32 c0 = static_cast<u32>(place), c1 = static_cast<u32>(place >> 32), c2 = 0, c3 = 0;
  u32 k0 = static_cast<u32>(key), k1 = static_cast<u32>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const u32 bits[4] = {c0, c1, c2, c3};
  for (int i = 0; i < 4 && 4 * block + i < words; ++i) out[4 * block + i] = bits[i];
}
