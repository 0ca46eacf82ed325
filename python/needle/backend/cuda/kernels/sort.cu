// Stable sorting: keys of 64 bits whose order is the values', sorted chunk by chunk in shared
// memory, then merged pairwise. Lines to sort are dense, one after another.
#include "prelude.cuh"

// Bits in the order of the numbers; NaN last, also if descending; zeros of both signs are equal.
template <class T>
__device__ inline u64 order_of(T x, bool descending) {
  u64 result;
  if constexpr (Traits<T>::is_floating) {
    const auto wide = widen(x);
    if (wide != wide) return ~static_cast<u64>(0);
    const double value = wide == 0 ? 0.0 : static_cast<double>(wide);
    const u64 bits = static_cast<u64>(__double_as_longlong(value));
    const u64 top = static_cast<u64>(1) << 63;
    result = bits & top ? ~bits : bits | top;
  } else if constexpr (Traits<T>::is_signed) {
    result = static_cast<u64>(static_cast<i64>(x)) ^ (static_cast<u64>(1) << 63);
  } else {
    result = static_cast<u64>(x);
  }
  return descending ? ~result : result;
}

// g: x with the sorted axis last. indices: the place within the line.
template <class T, class Index>
__global__ void __launch_bounds__(256)
    sort_keys(u64* keys, i64* indices, const T* x, Geometry<1> g, i64 length, i64 descending) {
  const Index i = position_in_grid<Index>();
  if (i >= static_cast<Index>(g.count)) return;
  const Offsets<1, Index> at(g, i);
  keys[i] = order_of(x[at.at[0]], descending != 0);
  indices[i] = i % static_cast<Index>(length);
}

constexpr int kMaxChunk = 1024;

// Bitonic, by (key, index), which makes it stable. A block has chunk / 2 threads.
__global__ void __launch_bounds__(kMaxChunk / 2)
    sort_chunks(u64* keys, i64* indices, i64 length, i64 chunk, i64 chunks) {
  SHARED(u64, key, [kMaxChunk]);
  SHARED(i64, index, [kMaxChunk]);
  const i64 line = blockIdx.x / chunks, first = blockIdx.x % chunks * chunk;
  keys += line * length + first;
  indices += line * length + first;
  const i64 count = length - first < chunk ? length - first : chunk;
  for (int i = threadIdx.x; i < chunk; i += blockDim.x) {
    key[i] = i < count ? keys[i] : ~static_cast<u64>(0);
    index[i] = i < count ? indices[i] : length + i;  // behind everything
  }
  __syncthreads();
  for (int size = 2; size <= chunk; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      const int low = 2 * static_cast<int>(threadIdx.x) - (threadIdx.x & (step - 1)),
                high = low + step;
      const bool upwards = (low & size) == 0;
      const bool above =
          key[low] > key[high] || (key[low] == key[high] && index[low] > index[high]);
      if (above == upwards) {
        const u64 k = key[low];
        const i64 i = index[low];
        key[low] = key[high];
        index[low] = index[high];
        key[high] = k;
        index[high] = i;
      }
      __syncthreads();
    }
  }
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    keys[i] = key[i];
    indices[i] = index[i];
  }
}

// Merges sorted runs in pairs: an element's place is its own plus how many of the other run come
// before it; of equal ones the left run's come first.
__global__ void __launch_bounds__(256)
    sort_merge(u64* keys_out, i64* indices_out, const u64* keys, const i64* indices, i64 total,
               i64 length, i64 run) {
  const i64 position = position_in_grid<i64>();
  if (position >= total) return;
  const i64 line = position / length * length, i = position - line;
  const i64 pair = i / (2 * run) * (2 * run);
  const bool left = i < pair + run;
  i64 low = left ? pair + run : pair;
  i64 high = left ? pair + 2 * run : pair + run;
  low = low < length ? low : length;
  high = high < length ? high : length;
  const i64 start = low;
  const u64 key = keys[position];
  while (low < high) {
    const i64 middle = (low + high) / 2;
    const u64 other = keys[line + middle];
    if (left ? other < key : other <= key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const i64 own = left ? i : i - run;  // in the pair, without the other run's
  const i64 to = line + own + (low - start);
  keys_out[to] = key;
  indices_out[to] = indices[position];
}

// g: values, indices and x with the sorted axis last, where x's stride is 0.
template <class T, class Index>
__global__ void __launch_bounds__(256)
    sort_results(T* values, i64* places, const T* x, const i64* indices, Geometry<3> g,
                 i64 axis_step) {
  const Index i = position_in_grid<Index>();
  if (i >= static_cast<Index>(g.count)) return;
  const Offsets<3, Index> at(g, i);
  const i64 from = indices[i];
  values[at.at[0]] = x[at.at[2] + from * axis_step];
  places[at.at[1]] = from;
}
