// Cumulative sums, products, maxima and minima along an axis.
#include "math.cuh"

template <class T>
using Carry = typename Choose<Traits<T>::is_floating, Compute<T>, i64>::type;

// A scan: the stored type, that of what is carried along a line (a float sum stops growing by ones
// at 2 ** 24), the state before the first element, and how two parts are joined.
struct CumSum {
  template <class T>
  using Out = typename Choose<Traits<T>::is_floating, T, i64>::type;
  template <class T>
  using Total = typename Choose<Traits<T>::is_floating, double, i64>::type;
  template <class C>
  static __device__ C start() {
    return 0;
  }
  template <class C>
  static __device__ C join(C x, C y) {
    return x + y;
  }
};
struct CumProd : CumSum {
  template <class T>
  using Total = Carry<T>;
  template <class C>
  static __device__ C start() {
    return 1;
  }
  template <class C>
  static __device__ C join(C x, C y) {
    return x * y;
  }
};
// NaN is larger and smaller than everything else; of equals the last.
template <bool largest>
struct CumExtreme {
  template <class T>
  using Out = T;
  template <class T>
  using Total = Carry<T>;
  template <class C>
  static __device__ C start() {
    return largest ? lowest<C>() : highest<C>();
  }
  template <class C>
  static __device__ C join(C x, C y) {
    return (largest ? y >= x : y <= x) || y != y ? y : x;
  }
};
using CumMax = CumExtreme<true>;
using CumMin = CumExtreme<false>;

template <class S, class T>
using ScanOut = typename S::template Out<T>;

constexpr int kThreads = 256, kWarps = kThreads / 32;

// A block per line: as many elements at a time as there are threads.
template <class S, class T>
__global__ void __launch_bounds__(kThreads)
    scan(ScanOut<S, T>* out, const T* x, Geometry<2> lines, i64 count, i64 out_step, i64 x_step) {
  using C = Carry<T>;
  SHARED(C, totals, [kWarps]);
  const Offsets<2, i64> at(lines, blockIdx.x);
  out += at.at[0];
  x += at.at[1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  using Total = typename S::template Total<T>;
  Total carry = S::template start<Total>();
  for (i64 first = 0; first < count; first += kThreads) {
    const i64 i = first + threadIdx.x;
    C value = i < count ? static_cast<C>(widen(x[i * x_step])) : S::template start<C>();
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const C before = __shfl_up_sync(kAllLanes, value, by);
      if (lane >= by) value = S::join(before, value);
    }
    if (lane == 31) totals[warp] = value;
    __syncthreads();
    Total before = carry;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before = S::join(before, static_cast<Total>(totals[w]));
      carry = S::join(carry, static_cast<Total>(totals[w]));
    }
    const Total found = S::join(before, static_cast<Total>(value));
    if (i < count) out[i * out_step] = cast<ScanOut<S, T>>(static_cast<C>(found));
    __syncthreads();
  }
}

// A thread per line: many short ones, or lines that lie side by side.
template <class S, class T, class Index>
__global__ void __launch_bounds__(kThreads)
    scan_lines(ScanOut<S, T>* out, const T* x, Geometry<2> lines, i64 count, i64 out_step,
               i64 x_step) {
  using C = Carry<T>;
  using Total = typename S::template Total<T>;
  const Index line = position_in_grid<Index>();
  if (line >= static_cast<Index>(lines.count)) return;
  const Offsets<2, Index> at(lines, line);
  Total total = S::template start<Total>();
  for (i64 i = 0; i < count; ++i) {
    total = S::join(total, static_cast<Total>(widen(x[at.at[1] + i * x_step])));
    out[at.at[0] + i * out_step] = cast<ScanOut<S, T>>(static_cast<C>(total));
  }
}
