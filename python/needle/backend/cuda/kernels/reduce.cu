// Reductions. A block is TX outputs times TY threads that share the elements of each; the partial
// results of those meet in a tree, always in the same order. Long reductions with few outputs are
// split over the blocks of grid.y; `reduce_finish` joins their parts.
#include "math.cuh"

template <class T>
using SumOf = typename Choose<Traits<T>::is_floating, Compute<T>, i64>::type;
template <class T>
using SumStored = typename Choose<Traits<T>::is_floating, T, i64>::type;

// A reduction: the initial state, how an element at position i or another state is added to
// it, and the result of the final state.
struct Sum {
  template <class T>
  using State = SumOf<T>;
  template <class T>
  using Out = SumStored<T>;
  template <class T>
  static __device__ State<T> start() {
    return 0;
  }
  template <class S, class X>
  static __device__ void add(S& s, X x, i64) {
    s += static_cast<S>(x);
  }
  template <class S>
  static __device__ void join(S& s, const S& other) {
    s += other;
  }
  template <class T, class S>
  static __device__ Out<T> finish(const S& s, i64) {
    return cast<Out<T>>(s);
  }
};
struct Mean : Sum {
  template <class T, class S>
  static __device__ Out<T> finish(const S& s, i64 count) {
    return cast<Out<T>>(static_cast<S>(s / static_cast<S>(count)));
  }
};
struct Prod : Sum {
  template <class T>
  static __device__ State<T> start() {
    return 1;
  }
  template <class S, class X>
  static __device__ void add(S& s, X x, i64) {
    s *= static_cast<S>(x);
  }
  template <class S>
  static __device__ void join(S& s, const S& other) {
    s *= other;
  }
};

// Sums of squares, and their root. Those of float fit into double; those of double are kept apart
// by size, as multiples of numbers whose squares have the range. Source: Blue, "A portable Fortran
// program to find the Euclidean norm of a vector", 1978.
struct Squares {
  double middle, large, small;
};
struct Norm {
  template <class T>
  using State = typename Choose<sizeof(T) == 8, Squares, double>::type;
  template <class T>
  using Out = double;
  template <class T>
  static __device__ State<T> start() {
    return State<T>{};
  }
  template <class X>
  static __device__ void add(double& s, X x, i64) {
    s += static_cast<double>(x) * static_cast<double>(x);
  }
  template <class X>
  static __device__ void add(Squares& s, X x, i64) {
    const double size = x < 0 ? -x : x;
    if (size > 0x1p400) {
      s.large += size * 0x1p-600 * (size * 0x1p-600);
    } else if (size < 0x1p-400) {
      s.small += size * 0x1p600 * (size * 0x1p600);
    } else {
      s.middle += size * size;
    }
  }
  static __device__ void join(double& s, const double& other) { s += other; }
  static __device__ void join(Squares& s, const Squares& other) {
    s.middle += other.middle;
    s.large += other.large;
    s.small += other.small;
  }
  template <class T>
  static __device__ double finish(const double& s, i64) {
    return sqrt(s);
  }
  template <class T>
  static __device__ double finish(const Squares& s, i64) {
    if (s.large != 0) return sqrt(s.large + s.middle * 0x1p-600 * 0x1p-600) * 0x1p600;
    return s.middle != 0 ? sqrt(s.middle + s.small * 0x1p-600 * 0x1p-600)
                         : sqrt(s.small) * 0x1p-600;
  }
};

// NaN is larger and smaller than everything else.
template <bool largest>
struct Extreme {
  template <class T>
  using State = Compute<T>;
  template <class T>
  using Out = T;
  template <class T>
  static __device__ State<T> start() {
    return largest ? lowest<Compute<T>>() : highest<Compute<T>>();
  }
  template <class S>
  static __device__ void add(S& s, S x, i64) {
    s = (largest ? x > s : x < s) || x != x ? x : s;
  }
  template <class S>
  static __device__ void join(S& s, const S& other) {
    add(s, other, 0);
  }
  template <class T, class S>
  static __device__ T finish(const S& s, i64) {
    return cast<T>(s);
  }
};
using Max = Extreme<true>;
using Min = Extreme<false>;

template <class C>
struct Place {
  C value;
  i64 at;  // -1: none yet
};
template <bool largest>
struct ArgExtreme {
  template <class T>
  using State = Place<Compute<T>>;
  template <class T>
  using Out = i64;
  template <class T>
  static __device__ State<T> start() {
    return {Compute<T>(0), -1};
  }
  template <class C>
  static __device__ void join(Place<C>& s, const Place<C>& other) {
    const C x = other.value, y = s.value;
    const bool better = (largest ? x > y : x < y) || (x != x && y == y);
    const bool same = x == y || (x != x && y != y);
    if (other.at >= 0 && (s.at < 0 || better || (same && other.at < s.at))) s = other;
  }
  template <class C, class X>
  static __device__ void add(Place<C>& s, X x, i64 i) {
    join(s, Place<C>{x, i});
  }
  template <class T, class S>
  static __device__ i64 finish(const S& s, i64) {
    return s.at;
  }
};
using ArgMax = ArgExtreme<true>;
using ArgMin = ArgExtreme<false>;

template <bool wanted>
struct Truth {
  template <class T>
  using State = int;
  template <class T>
  using Out = bool;
  template <class T>
  static __device__ int start() {
    return !wanted;
  }
  template <class X>
  static __device__ void add(int& s, X x, i64) {
    s = (x != 0) == wanted ? wanted : s;
  }
  static __device__ void join(int& s, const int& other) { s = other == wanted ? wanted : s; }
  template <class T, class S>
  static __device__ bool finish(const S& s, i64) {
    return s != 0;
  }
};
using Any = Truth<true>;
using All = Truth<false>;

constexpr int kThreads = 256;

// Joins the states of `count` threads, `step` apart, into the first of them.
template <class R, class S>
__device__ inline void join_threads(S* states, S& own, int member, int count, int step) {
  states[threadIdx.x] = own;
  __syncthreads();
  for (int half = count / 2; half > 0; half /= 2) {
    if (member < half) {
      R::join(own, states[threadIdx.x + half * step]);
      states[threadIdx.x] = own;
    }
    if (half * step > 16) {
      __syncthreads();
    } else {
      __syncwarp();  // the rest happens within warps
    }
  }
}

template <class T, int width>
__device__ inline Pack<T, width> pack_at(const T* x) {
  return *reinterpret_cast<const Pack<T, width>*>(x);
}

// Adds a thread's elements of one output that lie side by side: pieces of 16 bytes, then the rest.
template <class R, class T, class S>
__device__ inline void add_neighbours(S& state, const T* x, i64 begin, i64 end, int member,
                                      int team) {
  constexpr int kWidth = 16 / sizeof(T);
  const i64 whole = begin + (end - begin) / kWidth * kWidth;
#pragma unroll 8
  for (i64 i = begin + member * kWidth; i < whole; i += team * kWidth) {
    const auto values = pack_at<T, kWidth>(x + i);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) R::add(state, widen(values.v[j]), i + j);
  }
  for (i64 i = whole + member; i < end; i += team) R::add(state, widen(x[i]), i);
}

// Adds a thread's elements of `width` outputs that lie side by side, `step` apart for each.
template <class R, class T, int width, class S>
__device__ inline void add_columns(S (&states)[width], const T* x, i64 begin, i64 end, int member,
                                   int team, i64 step) {
#pragma unroll 4
  for (i64 i = begin + member; i < end; i += team) {
    const auto values = pack_at<T, width>(x + i * step);
#pragma unroll
    for (int j = 0; j < width; ++j) R::add(states[j], widen(values.v[j]), i);
  }
}

// The least blocks for a multiprocessor; 0: the compiler chooses. It chooses too many where
// elements or states are wide, and spills registers: see elementwise.cu.
template <class T, class State>
constexpr int kBlocks = sizeof(T) == 8                         ? 3
                        : sizeof(T) == 2 && sizeof(State) == 8 ? 5
                                                               : 0;

// team: TY, a power of two. along: a team's threads are neighbours, as are the elements they read;
// otherwise neighbours are the threads of neighbouring outputs. wide: there is one reduced axis,
// and several elements are read at once: of one output (along), or of kColumns outputs. part:
// elements for each grid.y.
template <class R, class T, class Index>
__global__ void __launch_bounds__(kThreads, kBlocks<T, typename R::template State<T>>)
    reduce(void* out, const T* x, void* parts, Geometry<2> kept, Geometry<1> reduced, i64 team,
           i64 along, i64 wide, i64 part) {
  using S = typename R::template State<T>;
  constexpr int kColumns = sizeof(T) == 8 ? 2 : 4;
  SHARED(S, shared, [kThreads]);
  const int outputs = kThreads / static_cast<int>(team);
  const int member = along ? threadIdx.x % static_cast<int>(team) : threadIdx.x / outputs;
  const int place = along ? threadIdx.x / static_cast<int>(team) : threadIdx.x % outputs;
  const int each = wide && !along ? kColumns : 1;
  const Index output = (static_cast<Index>(blockIdx.x) * outputs + place) * each;
  const bool real = output < static_cast<Index>(kept.count);
  S states[kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) states[j] = R::template start<T>();
  Offsets<2, Index> at(kept, real ? output : 0);
  if (real) {
    const i64 begin = blockIdx.y * part;
    const i64 end = begin + part < reduced.count ? begin + part : reduced.count;
    const T* own = x + at.at[1];
    if (wide && along) {
      add_neighbours<R>(states[0], own, begin, end, member, static_cast<int>(team));
    } else if (wide) {
      add_columns<R>(states, own, begin, end, member, static_cast<int>(team),
                     reduced.strides[0][0]);
    } else {
      for (Index i = static_cast<Index>(begin) + member; i < static_cast<Index>(end);
           i += static_cast<Index>(team)) {
        const Offsets<1, Index> inner(reduced, i);
        R::add(states[0], widen(own[inner.at[0]]), i);
      }
    }
  }
  const i64 out_step = kept.strides[0][kept.ndim - 1];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    if (j == each) return;
    if (j) __syncthreads();
    join_threads<R>(&shared[0], states[j], member, static_cast<int>(team), along ? 1 : outputs);
    if (!real || member) continue;
    if (parts) {
      static_cast<S*>(parts)[(output + j) * static_cast<i64>(gridDim.y) + blockIdx.y] = states[j];
    } else {
      using Out = typename R::template Out<T>;
      static_cast<Out*>(out)[at.at[0] + j * out_step] =
          R::template finish<T>(states[j], reduced.count);
    }
  }
}

// A block per output.
template <class R, class T>
__global__ void __launch_bounds__(kThreads)
    reduce_finish(void* out, const void* parts, i64 count, i64 elements, Geometry<1> kept) {
  using S = typename R::template State<T>;
  SHARED(S, states, [kThreads]);
  S state = R::template start<T>();
  const S* own = static_cast<const S*>(parts) + blockIdx.x * count;
  for (i64 i = threadIdx.x; i < count; i += kThreads) R::join(state, own[i]);
  join_threads<R>(states, state, threadIdx.x, kThreads, 1);
  if (threadIdx.x) return;
  const Offsets<1, i64> at(kept, blockIdx.x);
  static_cast<typename R::template Out<T>*>(out)[at.at[0]] = R::template finish<T>(state, elements);
}
