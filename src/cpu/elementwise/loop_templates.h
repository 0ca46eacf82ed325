// How a row of functions.def becomes loops. Included by the files that instantiate them.
#pragma once
#include <algorithm>
#include <tuple>

#include "half.h"
#include "isa/lanes.h"
#include "elementwise/loops.h"
#include "base/stream.h"
#include "vector_math.h"

namespace needle::NEEDLE_ISA {

// The types of the dtypes that have loops, in their order; void: computed as float32.
using Types =
    std::tuple<float, double, void, void, int8_t, int16_t, int32_t, int64_t, uint8_t, bool>;
template <DType dtype>
using TypeOf = std::tuple_element_t<dtype, Types>;

// The dtypes and results that a row may name.
constexpr uint32_t FLOATS = 1u << kFloat32 | 1u << kFloat64;
constexpr uint32_t INTEGERS =
    1u << kInt8 | 1u << kInt16 | 1u << kInt32 | 1u << kInt64 | 1u << kUInt8;
constexpr uint32_t NUMBERS = FLOATS | INTEGERS;
constexpr uint32_t INTEGRAL = INTEGERS | 1u << kBool;
constexpr uint32_t ALL = NUMBERS | INTEGRAL;
enum Result { SAME, BOOL };

// flatten: a call that is left would keep the loop from becoming vector code.
#define ELEMENT_LOOP __attribute__((flatten)) void
#define ELEMENT [&](int64_t i) __attribute__((flatten))

// `past`: past the caches.
template <bool past, class T>
inline void put(T* p, const Vector<T>& v) {
  if (past)
    stream(p, &v, sizeof v);
  else
    store(p, v);
}

// How many vectors of a function are computed together. Four vectors are read before any of them is
// written: a load waits for a store shortly before it to the same place of another page, so vector
// by vector the speed would depend on where operands lie. In functions of many instructions the
// compiler mixes those of two vectors, because instructions of one never wait for the other and
// some processors look ahead over few instructions.
constexpr int64_t vectors_together(int32_t function) {
  if (!has_many_instructions(function)) return 4;
#if defined(__AVX512F__)
  return 1;
#else
  return 2;
#endif
}

// o[i] = element(i), which applies F to numbers of type T at i. `o` may be one of the inputs, so no
// pointer is restrict; but no element depends on another.
template <class F, class T, bool past = false, class R, class Element>
inline __attribute__((always_inline)) void fill(R* o, int64_t n, const Element& element) {
  int64_t i = 0;
  constexpr int64_t kTogether = vectors_together(F::kFunction);
  if constexpr (kTogether > 1) {
    constexpr int64_t kWide = std::min(kLanes<T>, kLanes<R>);
    constexpr int64_t kNarrow = std::max(kLanes<T>, kLanes<R>);
    constexpr int64_t kGroup = std::max(kTogether * kWide, kNarrow);
    for (; i + kGroup <= n; i += kGroup) {
      alignas(kVectorBytes) R group[kGroup];  // stays in registers
#pragma GCC ivdep
      for (int64_t j = 0; j < kGroup; ++j) group[j] = element(i + j);
#pragma GCC unroll 8
      for (int64_t j = 0; j < kGroup; j += kLanes<R>) store(o + i + j, load(group + j));
    }
  }
  if constexpr (past) {
    for (; i + kLanes<R> <= n; i += kLanes<R>) {
      alignas(kVectorBytes) R line[kLanes<R>];  // stays in a register
#pragma GCC ivdep
      for (int64_t j = 0; j < kLanes<R>; ++j) line[j] = element(i + j);
      put<true>(o + i, load(line));
    }
  }
#pragma GCC ivdep
  for (; i < n; ++i) o[i] = element(i);
}

template <class F, class T, class R, bool past = false>
ELEMENT_LOOP unary_loop(void* out, const void* const* inputs, int64_t n) {
  auto* x = elements<T>(inputs[0]);
  fill<F, T, past>(
      elements<R>(out), n, ELEMENT { return static_cast<R>(F::apply(static_cast<T>(x[i]))); });
}

// Rows name a form of theirs for whole vectors by specialising this, where such a form has fewer
// instructions than the compiler finds. Where `is_far` can be true it is not the right one.
// `second` gives the same bits as `apply`, of the second vector of a pair.
template <class F, class T>
struct OfVectors {
  static constexpr bool kExists = false;
};

template <class F, class T, bool past = false>
ELEMENT_LOOP vector_loop(void* out, const void* const* inputs, int64_t n) {
  T* o = static_cast<T*>(out);
  const T* x = static_cast<const T*>(inputs[0]);
  // Two together: neither waits for the other, and the processor looks little further ahead.
  constexpr int64_t kPair = 2 * kLanes<T>;
  for (; n >= kPair; n -= kPair, o += kPair, x += kPair) {
    const Vector<T> first = OfVectors<F, T>::apply(load(x));
    const Vector<T> second = OfVectors<F, T>::second(load(x + kLanes<T>));
    put<past>(o, first);
    put<past>(o + kLanes<T>, second);
  }
  for_vectors<T>(n, [&](int64_t i, const auto& part) {
    part.store(o + i, OfVectors<F, T>::apply(part.load(x + i)));
  });
}

// One of the operands may be a number, which stays in a register.
template <class F, class T, bool one_x = false, bool one_y = false>
ELEMENT_LOOP binary_vector_loop(void* out, const void* const* inputs, int64_t n) {
  const T *x = static_cast<const T*>(inputs[0]), *y = static_cast<const T*>(inputs[1]);
  const Vector<T> a = one_x && n > 0 ? splat(*x) : Vector<T>{};
  const Vector<T> b = one_y && n > 0 ? splat(*y) : Vector<T>{};
  for_vectors<T>(n, [&](int64_t i, const auto& part) {
    part.store(static_cast<T*>(out) + i,
               OfVectors<F, T>::apply(one_x ? a : part.load(x + i), one_y ? b : part.load(y + i)));
  });
}

template <class F, class T, class R>
ELEMENT_LOOP binary_loop(void* out, const void* const* inputs, int64_t n) {
  auto* x = elements<T>(inputs[0]);
  auto* y = elements<T>(inputs[1]);
  fill<F, T>(
      elements<R>(out), n,
      ELEMENT { return static_cast<R>(F::apply(static_cast<T>(x[i]), static_cast<T>(y[i]))); });
}

template <class F, class X, class T, class R>
ELEMENT_LOOP ternary_loop(void* out, const void* const* inputs, int64_t n) {
  auto* x = elements<X>(inputs[0]);
  auto* y = elements<T>(inputs[1]);
  auto* z = elements<T>(inputs[2]);
  fill<F, T>(
      elements<R>(out), n, ELEMENT {
        return static_cast<R>(
            F::apply(static_cast<X>(x[i]), static_cast<T>(y[i]), static_cast<T>(z[i])));
      });
}

// Beside a number, which stays in a register: the first operand, or all but the first.
template <class F, class T, class R>
ELEMENT_LOOP uniform_first_loop(void* out, const void* const* inputs, int64_t n) {
  const T x = *elements<T>(inputs[0]);
  auto* y = elements<T>(inputs[1]);
  fill<F, T>(elements<R>(out), n, ELEMENT { return static_cast<R>(F::apply(x, y[i])); });
}

template <class F, class T, class R>
ELEMENT_LOOP uniform_last_loop(void* out, const void* const* inputs, int64_t n) {
  auto* x = elements<T>(inputs[0]);
  const T y = *elements<T>(inputs[1]);
  fill<F, T>(elements<R>(out), n, ELEMENT { return static_cast<R>(F::apply(x[i], y)); });
}

template <class F, class X, class T, class R>
ELEMENT_LOOP uniform_last_two_loop(void* out, const void* const* inputs, int64_t n) {
  auto* x = elements<X>(inputs[0]);
  const T y = *elements<T>(inputs[1]), z = *elements<T>(inputs[2]);
  fill<F, T>(
      elements<R>(out), n,
      ELEMENT { return static_cast<R>(F::apply(static_cast<X>(x[i]), y, z)); });
}

// The vector form of a few functions is wrong for rare arguments. Rows name the test and the slow
// way by specialising this; a piece of the loop with such an argument is computed slowly.
template <class F, class T>
struct Exact {
  static constexpr bool kNeeded = false;
};

// Pieces of a loop over x with an element that passes the test go to `rare`, others to `loop`.
template <class T, class Test>
inline __attribute__((always_inline)) void in_pieces(void* out, const void* x, int64_t n,
                                                     const Test& test, Contiguous loop,
                                                     Contiguous rare) {
  constexpr int64_t kPiece = 256;
  for (int64_t first = 0; first < n; first += kPiece) {
    const T* from = static_cast<const T*>(x) + first;
    const int64_t count = std::min(kPiece, n - first);
    int found = 0;
    for (int64_t i = 0; i < count; ++i) found |= test(from[i]);
    const void* piece[] = {from};
    (found ? rare : loop)(static_cast<T*>(out) + first, piece, count);
  }
}

template <class F, class T>
void exact_unary(void* out, const void* const* inputs, int64_t n) {
  const T* x = static_cast<const T*>(inputs[0]);
  for (int64_t i = 0; i < n; ++i) static_cast<T*>(out)[i] = Exact<F, T>::apply(x[i]);
}

template <class F, class T, bool past = false>
void guarded_unary(void* out, const void* const* inputs, int64_t n) {
  const auto is_rare = [](T x) { return Exact<F, T>::is_rare(x); };
  in_pieces<T>(out, inputs[0], n, is_rare, unary_loop<F, T, T, past>, exact_unary<F, T>);
}

// Near ones in the form for vectors.
template <class F, class T, bool past = false>
void near_unary(void* out, const void* const* inputs, int64_t n) {
  const auto is_far = [](T x) { return OfVectors<F, T>::is_far(x); };
  in_pieces<T>(out, inputs[0], n, is_far, vector_loop<F, T, past>, guarded_unary<F, T>);
}

// Rows name a form of theirs for usual arguments by specialising this, where the others cost much.
template <class F, class T>
struct Usual {
  static constexpr bool kExists = false;
};

template <class F, class T, bool past = false>
void usual_unary(void* out, const void* const* inputs, int64_t n) {
  const auto is_unusual = [](T x) { return !Usual<F, T>::is_usual(x); };
  in_pieces<T>(out, inputs[0], n, is_unusual, unary_loop<Usual<F, T>, T, T, past>,
               unary_loop<F, T, T, past>);
}

template <class F, class T>
ELEMENT_LOOP guarded_binary(void* out, const void* const* inputs, int64_t n) {
  constexpr int64_t kPiece = 256;
  for (int64_t first = 0; first < n; first += kPiece) {
    T* o = static_cast<T*>(out) + first;
    const T* x = static_cast<const T*>(inputs[0]) + first;
    const T* y = static_cast<const T*>(inputs[1]) + first;
    int64_t count = std::min(kPiece, n - first);
    int rare = 0;
    for (int64_t i = 0; i < count; ++i) rare |= Exact<F, T>::is_rare(x[i], y[i]);
    const void* piece[] = {x, y};
    if (!rare) {
      binary_loop<F, T, T>(o, piece, count);
    } else {
      for (int64_t i = 0; i < count; ++i) o[i] = Exact<F, T>::apply(x[i], y[i]);
    }
  }
}

template <class F, class T, class R, bool past = false>
constexpr Contiguous unary_form() {
  constexpr bool kOfVectors = OfVectors<F, T>::kExists, kGuarded = Exact<F, T>::kNeeded;
  constexpr bool kUsual = !kOfVectors && !kGuarded && Usual<F, T>::kExists;
  if constexpr (kOfVectors && kGuarded) return near_unary<F, T, past>;
  if constexpr (kOfVectors && !kGuarded) return vector_loop<F, T, past>;
  if constexpr (!kOfVectors && kGuarded) return guarded_unary<F, T, past>;
  if constexpr (kUsual) return usual_unary<F, T, past>;
  if constexpr (!kOfVectors && !kGuarded && !kUsual) return unary_loop<F, T, R, past>;
}

// The form of kPastLoops.
template <class F, uint32_t dtypes>
constexpr Contiguous past_form() {
#if defined(__AVX512F__)
  if constexpr ((dtypes >> kFloat32 & 1) != 0 && has_many_instructions(F::kFunction))
    return unary_form<F, float, float, true>();
#endif
  return nullptr;
}

// Bools are bytes, true unless 0. Rows name a form on bytes by specialising this, where it has
// fewer instructions than one that makes 0 or 1 of both first.
template <class F>
struct OfBytes {
  static constexpr bool kExists = false;
};

template <class F>
ELEMENT_LOOP bytes_loop(void* out, const void* const* inputs, int64_t n) {
  auto *x = elements<uint8_t>(inputs[0]), *y = elements<uint8_t>(inputs[1]);
  fill<F, uint8_t>(elements<uint8_t>(out), n, ELEMENT { return OfBytes<F>::apply(x[i], y[i]); });
}

template <class F, class T, class R>
constexpr Contiguous binary_form() {
  constexpr bool kOfBytes = OfBytes<F>::kExists && std::is_same_v<T, bool>;
  constexpr bool kOfVectors = OfVectors<F, T>::kExists, kGuarded = Exact<F, T>::kNeeded;
  if constexpr (kOfBytes) return bytes_loop<F>;
  if constexpr (kOfVectors) return binary_vector_loop<F, T>;
  if constexpr (!kOfVectors && kGuarded) return guarded_binary<F, T>;
  if constexpr (!kOfBytes && !kOfVectors && !kGuarded) return binary_loop<F, T, R>;
}

// The loop of one row for one dtype, or null where the row does not list it.
template <class F, int arity, uint32_t dtypes, Result result, DType dtype>
constexpr Contiguous instantiate() {
  if constexpr ((dtypes >> dtype & 1) != 0) {
    using T = TypeOf<dtype>;
    using R = std::conditional_t<result == BOOL, bool, T>;
    if constexpr (arity == 1) return unary_form<F, T, R>();
    if constexpr (arity == 2) return binary_form<F, T, R>();
    if constexpr (arity == 3) return ternary_loop<F, typename F::template First<T>, T, R>;
  }
  return nullptr;
}

// ---- bfloat16: functions of few instructions, computed as float32 from element to element. In
// tiles of float32 the conversions would take longer than the functions themselves.

inline float widened(uint16_t x) { return to_float(BFloat16{x}); }
template <class R, class V>
inline R narrowed(V value) {
  if constexpr (std::is_same_v<R, bool>)
    return value;
  else
    return to_bfloat16(static_cast<float>(value)).bits;
}

template <class F, class R>
ELEMENT_LOOP bfloat16_unary(void* out, const void* const* inputs, int64_t n) {
  auto* x = static_cast<const uint16_t*>(inputs[0]);
  fill<F, uint16_t>(elements<R>(out), n, ELEMENT { return narrowed<R>(F::apply(widened(x[i]))); });
}

template <class F, class R>
ELEMENT_LOOP bfloat16_binary(void* out, const void* const* inputs, int64_t n) {
  auto* x = static_cast<const uint16_t*>(inputs[0]);
  auto* y = static_cast<const uint16_t*>(inputs[1]);
  fill<F, uint16_t>(
      elements<R>(out), n, ELEMENT { return narrowed<R>(F::apply(widened(x[i]), widened(y[i]))); });
}

// Functions of the sign alone need not know the number: specialised by rows, on the bits.
template <class F>
struct OfSign {
  static constexpr bool kExists = false;
};

template <class F>
ELEMENT_LOOP sign_loop(void* out, const void* const* inputs, int64_t n) {
  auto* x = static_cast<const uint16_t*>(inputs[0]);
  fill<F, uint16_t>(elements<uint16_t>(out), n, ELEMENT { return OfSign<F>::apply(x[i]); });
}

template <class F>
constexpr Contiguous instantiate_float16() {
  if constexpr (OfSign<F>::kExists) return sign_loop<F>;
  return nullptr;
}

template <class F, int arity, uint32_t dtypes, Result result>
constexpr Contiguous instantiate_bfloat16() {
  if constexpr (OfSign<F>::kExists) return sign_loop<F>;
  constexpr bool kFew = !has_many_instructions(F::kFunction);
  if constexpr ((dtypes >> kFloat32 & 1) != 0 && kFew && !Exact<F, float>::kNeeded) {
    using R = std::conditional_t<result == BOOL, bool, uint16_t>;
    if constexpr (arity == 1) return bfloat16_unary<F, R>;
    if constexpr (arity == 2) return bfloat16_binary<F, R>;
  }
  return nullptr;
}

// Rows name a loop of theirs for a second operand that is a number by specialising this, where some
// numbers have an easier way than the `usual` one.
template <class F, class T, Contiguous usual>
struct BesideNumber {
  static constexpr Contiguous loop = usual;
};

// The same beside a number; only for floating dtypes, which Python numbers mostly meet. None where
// rare arguments go a slow way: that takes the number repeated in a buffer.
template <class F, int arity, uint32_t dtypes, Result result, class T>
constexpr UniformLoops instantiate_uniform() {
  constexpr DType dtype = sizeof(T) == 4 ? kFloat32 : kFloat64;
  using R = std::conditional_t<result == BOOL, bool, T>;
  if constexpr ((dtypes >> dtype & 1) == 0) {
    return {};
  } else if constexpr (OfVectors<F, T>::kExists) {
    constexpr Contiguous kLast = binary_vector_loop<F, T, false, true>;
    return {binary_vector_loop<F, T, true, false>, BesideNumber<F, T, kLast>::loop};
  } else if constexpr (Exact<F, T>::kNeeded) {
    return {};
  } else if constexpr (arity == 2) {
    constexpr Contiguous kLast = uniform_last_loop<F, T, R>;
    return {uniform_first_loop<F, T, R>, BesideNumber<F, T, kLast>::loop};
  } else {
    return {nullptr, uniform_last_two_loop<F, typename F::template First<T>, T, R>};
  }
}

#define LOOP_ROW(F, arity, dtypes, result)               \
  {                                                      \
      instantiate<F, arity, dtypes, result, kFloat32>(), \
      instantiate<F, arity, dtypes, result, kFloat64>(), \
      instantiate_bfloat16<F, arity, dtypes, result>(),  \
      instantiate_float16<F>(),                          \
      instantiate<F, arity, dtypes, result, kInt8>(),    \
      instantiate<F, arity, dtypes, result, kInt16>(),   \
      instantiate<F, arity, dtypes, result, kInt32>(),   \
      instantiate<F, arity, dtypes, result, kInt64>(),   \
      instantiate<F, arity, dtypes, result, kUInt8>(),   \
      instantiate<F, arity, dtypes, result, kBool>(),    \
  }

#define UNIFORM_ROW(F, arity, dtypes, result)                  \
  {                                                            \
      instantiate_uniform<F, arity, dtypes, result, float>(),  \
      instantiate_uniform<F, arity, dtypes, result, double>(), \
  }

}  // namespace needle::NEEDLE_ISA
