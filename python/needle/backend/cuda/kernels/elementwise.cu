// Elementwise functions: every row of functions.def, for dense and for strided operands.
#include "math.cuh"

#define SAME T
#define BOOL bool
#define UNARY(name, dtypes, result, ...)       \
  struct f_##name {                            \
    static constexpr int arity = 1;            \
    template <class T>                         \
    using Result = result;                     \
    template <class T>                         \
    static __device__ inline result of(T x) {  \
      return static_cast<result>(__VA_ARGS__); \
    }                                          \
  };
#define BINARY(name, dtypes, result, ...)          \
  struct f_##name {                                \
    static constexpr int arity = 2;                \
    template <class T>                             \
    using Result = result;                         \
    template <class T>                             \
    static __device__ inline result of(T x, T y) { \
      return static_cast<result>(__VA_ARGS__);     \
    }                                              \
  };
#define TERNARY(name, dtypes, result, ...)              \
  struct f_##name {                                     \
    static constexpr int arity = 3;                     \
    template <class T>                                  \
    using Result = result;                              \
    template <class X, class T>                         \
    static __device__ inline result of(X x, T y, T z) { \
      return static_cast<result>(__VA_ARGS__);          \
    }                                                   \
  };
#include "functions.def"
#undef SAME
#undef BOOL
#undef UNARY
#undef BINARY
#undef TERNARY

// The types of operands and result; the condition of `where` is bool.
template <class F, class T, int operand>
using Input = typename Choose<is_same<F, f_where> && operand == 0, bool, T>::type;
template <class F, class T>
using Output = typename Choose<is_same<typename F::template Result<T>, bool>, bool, T>::type;

template <class F, class T>
__device__ inline Output<F, T> apply(const Input<F, T, 0>& x, const T& y, const T& z) {
  using C = Compute<T>;
  if constexpr (F::arity == 1) {
    return cast<Output<F, T>>(F::template of<C>(widen(x)));
  } else if constexpr (F::arity == 2) {
    return cast<Output<F, T>>(F::template of<C>(widen(x), widen(y)));
  } else {
    return cast<Output<F, T>>(F::of(widen(x), widen(y), widen(z)));
  }
}

// Operands of any strides, an element per thread.
template <class F, class T, class Index>
__global__ void __launch_bounds__(256)
    elementwise(Pointers<F::arity + 1> p, Geometry<F::arity + 1> g) {
  const Index i = position_in_grid<Index>();
  if (i >= static_cast<Index>(g.count)) return;
  const Offsets<F::arity + 1, Index> offsets(g, i);
  const auto x = static_cast<const Input<F, T, 0>*>(p.p[1])[offsets.at[1]];
  T y{}, z{};
  if constexpr (F::arity > 1) y = static_cast<const T*>(p.p[2])[offsets.at[2]];
  if constexpr (F::arity > 2) z = static_cast<const T*>(p.p[3])[offsets.at[3]];
  static_cast<Output<F, T>*>(p.p[0])[offsets.at[0]] = apply<F, T>(x, y, z);
}

// The part of one operand that a thread works on: `width` elements read by one instruction, or one
// value repeated.
template <class T, int width>
__device__ inline Pack<T, width> read(const void* p, i64 part, bool scalar) {
  if (!scalar) return static_cast<const Pack<T, width>*>(p)[part];
  Pack<T, width> same;
#pragma unroll
  for (int i = 0; i < width; ++i) same.v[i] = *static_cast<const T*>(p);
  return same;
}

// Dense operands on 16-byte boundaries, or (a bit in `scalars`) single values. The last thread
// does what is left over one by one. (Two blocks a multiprocessor: told nothing, the compiler
// spills registers to make room for more.)
template <class F, class T, int width>
__global__ void __launch_bounds__(256, 2)
    elementwise_dense(Pointers<F::arity + 1> p, i64 count, i64 scalars) {
  const i64 part = position_in_grid<i64>();
  if (part * width >= count) return;
  auto* out = static_cast<Output<F, T>*>(p.p[0]);
  if (part * width + width > count) {
    for (i64 i = part * width; i < count; ++i) {
      const auto x = static_cast<const Input<F, T, 0>*>(p.p[1])[scalars & 1 ? 0 : i];
      T y{}, z{};
      if constexpr (F::arity > 1) y = static_cast<const T*>(p.p[2])[scalars & 2 ? 0 : i];
      if constexpr (F::arity > 2) z = static_cast<const T*>(p.p[3])[scalars & 4 ? 0 : i];
      out[i] = apply<F, T>(x, y, z);
    }
    return;
  }
  const auto x = read<Input<F, T, 0>, width>(p.p[1], part, scalars & 1);
  Pack<T, width> y{}, z{};
  if constexpr (F::arity > 1) y = read<T, width>(p.p[2], part, scalars & 2);
  if constexpr (F::arity > 2) z = read<T, width>(p.p[3], part, scalars & 4);
  Pack<Output<F, T>, width> result;
#pragma unroll
  for (int i = 0; i < width; ++i) result.v[i] = apply<F, T>(x.v[i], y.v[i], z.v[i]);
  reinterpret_cast<Pack<Output<F, T>, width>*>(out)[part] = result;
}
