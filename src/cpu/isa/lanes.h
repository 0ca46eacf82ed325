// Vectors of the widest kind that this instruction set has, on GCC's vector extensions: the
// operators + - * < and ?: work lane by lane, and the compiler contracts a * b + c into one FMA.
#pragma once
#include <cstring>
#include <type_traits>

#include "isa/isa.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace needle::NEEDLE_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T>
constexpr int64_t kLanes = kVectorBytes / sizeof(T);

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

// Vector code loads and stores a bool as a number.
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
template <class T>
inline Stored<T>* elements(void* out) {
  return static_cast<Stored<T>*>(out);
}
template <class T>
inline const Stored<T>* elements(const void* x) {
  return static_cast<const Stored<T>*>(x);
}

template <class T>
inline Vector<T> splat(T value) {
  return value - Vector<T>{};  // x - 0 keeps the sign of -0, 0 + x would lose it
}

template <class T>
inline Vector<T> load(const T* p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
inline void store(T* p, const Vector<T>& v) {
  std::memcpy(p, &v, sizeof v);
}

// a > b ? a : b, or a < b ? a : b. V is a vector or a part of one. Of most of these comparisons
// the compiler makes two instructions.
template <bool largest, class V>
inline V extreme(const V& a, const V& b) {
#if defined(__SSE2__)
  using A = std::decay_t<decltype(a[0])>;
  constexpr size_t kFloats = std::is_same_v<A, float> ? sizeof(V) : 0;
  constexpr size_t kDoubles = std::is_same_v<A, double> ? sizeof(V) : 0;
#if defined(__AVX512F__)
  if constexpr (kFloats == 64) return largest ? _mm512_max_ps(a, b) : _mm512_min_ps(a, b);
  if constexpr (kDoubles == 64) return largest ? _mm512_max_pd(a, b) : _mm512_min_pd(a, b);
#endif
#if defined(__AVX__)
  if constexpr (kFloats == 32) return largest ? _mm256_max_ps(a, b) : _mm256_min_ps(a, b);
  if constexpr (kDoubles == 32) return largest ? _mm256_max_pd(a, b) : _mm256_min_pd(a, b);
#endif
  if constexpr (kFloats == 16) return largest ? _mm_max_ps(a, b) : _mm_min_ps(a, b);
  if constexpr (kDoubles == 16) return largest ? _mm_max_pd(a, b) : _mm_min_pd(a, b);
#endif
  return largest ? (a > b ? a : b) : (a < b ? a : b);
}
template <class V>
inline V larger(const V& a, const V& b) {
  return extreme<true>(a, b);
}
template <class V>
inline V smaller(const V& a, const V& b) {
  return extreme<false>(a, b);
}

// v was loaded and stays in a register: the compiler would rather read it again in each product.
template <class V>
inline void load_once([[maybe_unused]] V& v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__SSE2__)
  asm("" : "+x"(v));
#endif
}

// The lanes' numbers, in memory because the compiler would put them together one by one.
template <class Lane>
alignas(64) constexpr Lane kLaneNumbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};

// v with its lanes i and i ^ width exchanged.
template <class T>
inline Vector<T> exchange(const Vector<T>& v, int width) {
  using Lane = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  return __builtin_shuffle(v, load(kLaneNumbers<Lane>) ^ static_cast<Lane>(width));
}

// Which lanes of two vectors add_halves takes: in memory, too.
template <class T, int width>
struct Halves {
  using Lane = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  alignas(64) Lane own[kLanes<T>] = {};
  alignas(64) Lane other[kLanes<T>] = {};
  constexpr Halves() {
    for (int i = 0; i < kLanes<T>; ++i) {
      const Lane of_b = i & width ? kLanes<T> : 0;
      own[i] = i + of_b;
      other[i] = (i ^ width) + of_b;
    }
  }
  static const Halves kHalves;
};
template <class T, int width>
constexpr Halves<T, width> Halves<T, width>::kHalves = {};

// In the lanes without the bit `width` of their numbers: a's and those of a with it; in the others
// b's.
template <class T, int width>
inline Vector<T> add_halves(const Vector<T>& a, const Vector<T>& b) {
  const auto& lanes = Halves<T, width>::kHalves;
  return __builtin_shuffle(a, b, load(lanes.own)) + __builtin_shuffle(a, b, load(lanes.other));
}

template <class T>
inline T add_lanes(Vector<T> v) {
#pragma GCC unroll 4
  for (int width = kLanes<T> / 2; width > 0; width /= 2) v += exchange<T>(v, width);
  return v[0];
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Eight steps of eight lines: the first four lines in one half of vectors, the others in the other,
// because numbers cross from half to half only on their way from memory.
template <class Line>
inline void load_transposed(Vector<float> (&column)[8], const Line& line) {
#pragma GCC unroll 2
  for (int p = 0; p < 8; p += 4) {
    Vector<float> x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      x[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(line(i) + p)),
                                  _mm_loadu_ps(line(i + 4) + p), 1);
    const Vector<float> first01 = _mm256_unpacklo_ps(x[0], x[1]);
    const Vector<float> first23 = _mm256_unpacklo_ps(x[2], x[3]);
    const Vector<float> last01 = _mm256_unpackhi_ps(x[0], x[1]);
    const Vector<float> last23 = _mm256_unpackhi_ps(x[2], x[3]);
    column[p] = _mm256_shuffle_ps(first01, first23, 0x44);
    column[p + 1] = _mm256_shuffle_ps(first01, first23, 0xee);
    column[p + 2] = _mm256_shuffle_ps(last01, last23, 0x44);
    column[p + 3] = _mm256_shuffle_ps(last01, last23, 0xee);
  }
}
#endif

// Which lanes of a last, partial vector exist. Loads of the others give zero and never fault.
template <class T>
struct Tail {
  int64_t lanes;
  explicit Tail(int64_t n) : lanes(n) {}
  Vector<T> load(const T* p) const {
    Vector<T> v = {};
    std::memcpy(&v, p, lanes * sizeof(T));
    return v;
  }
  void store(T* p, const Vector<T>& v) const { std::memcpy(p, &v, lanes * sizeof(T)); }
  Vector<T> keep(const Vector<T>& v) const {  // zeros in the lanes that do not exist
    T all[kLanes<T>];
    needle::NEEDLE_ISA::store(all, v);
    return load(all);
  }
};

#if defined(__AVX512F__)
template <>
struct Tail<float> {
  __mmask16 lanes;
  explicit Tail(int64_t n) : lanes(static_cast<__mmask16>((1u << n) - 1)) {}
  Vector<float> load(const float* p) const { return _mm512_maskz_loadu_ps(lanes, p); }
  void store(float* p, const Vector<float>& v) const { _mm512_mask_storeu_ps(p, lanes, v); }
  Vector<float> keep(const Vector<float>& v) const { return _mm512_maskz_mov_ps(lanes, v); }
};

template <>
struct Tail<double> {
  __mmask8 lanes;
  explicit Tail(int64_t n) : lanes(static_cast<__mmask8>((1u << n) - 1)) {}
  Vector<double> load(const double* p) const { return _mm512_maskz_loadu_pd(lanes, p); }
  void store(double* p, const Vector<double>& v) const { _mm512_mask_storeu_pd(p, lanes, v); }
  Vector<double> keep(const Vector<double>& v) const { return _mm512_maskz_mov_pd(lanes, v); }
};
constexpr bool kMaskedLoads = true;
#else
constexpr bool kMaskedLoads = false;
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
// Copying so many bytes is a call, and what was copied in parts is read as a whole only after a
// while. Some processors take long for stores by a mask, but not for loads.
constexpr int32_t kMasks[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

template <>
struct Tail<float> {
  int64_t lanes;
  explicit Tail(int64_t n) : lanes(n) {}
  __m256i mask() const {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMasks + 8 - lanes));
  }
  Vector<float> load(const float* p) const { return _mm256_maskload_ps(p, mask()); }
  void store(float* p, const Vector<float>& v) const {
    __m128 rest = _mm256_castps256_ps128(v);
    if (lanes & 8) return needle::NEEDLE_ISA::store(p, v);
    if (lanes & 4) {
      _mm_storeu_ps(p, rest);
      rest = _mm256_extractf128_ps(v, 1);
      p += 4;
    }
    if (lanes & 2) {
      _mm_storel_pi(reinterpret_cast<__m64*>(p), rest);
      rest = _mm_movehl_ps(rest, rest);
      p += 2;
    }
    if (lanes & 1) _mm_store_ss(p, rest);
  }
  Vector<float> keep(const Vector<float>& v) const { return (Vector<float>)((__m256i)v & mask()); }
};

template <>
struct Tail<double> {
  int64_t lanes;
  explicit Tail(int64_t n) : lanes(n) {}
  __m256i mask() const {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMasks + 8 - 2 * lanes));
  }
  Vector<double> load(const double* p) const { return _mm256_maskload_pd(p, mask()); }
  void store(double* p, const Vector<double>& v) const {
    __m128d rest = _mm256_castpd256_pd128(v);
    if (lanes & 4) return needle::NEEDLE_ISA::store(p, v);
    if (lanes & 2) {
      _mm_storeu_pd(p, rest);
      rest = _mm256_extractf128_pd(v, 1);
      p += 2;
    }
    if (lanes & 1) _mm_store_sd(p, rest);
  }
  Vector<double> keep(const Vector<double>& v) const {
    return (Vector<double>)((__m256i)v & mask());
  }
};
#endif

// All lanes of a vector, with the members of Tail.
template <class T>
struct Whole {
  Vector<T> load(const T* p) const { return needle::NEEDLE_ISA::load(p); }
  void store(T* p, const Vector<T>& v) const { needle::NEEDLE_ISA::store(p, v); }
  Vector<T> keep(const Vector<T>& v) const { return v; }
};

// Whole vectors at aligned addresses, stored past the caches: for results so large that they would
// be gone from there before they are read.
template <class T>
struct Streamed : Whole<T> {
  void store(T* p, const Vector<T>& v) const {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), (__m512i)v);
#elif defined(__AVX__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)v);
#elif defined(__SSE2__)
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)v);
#else
    needle::NEEDLE_ISA::store(p, v);
#endif
  }
};

// After this, other threads see the streamed data.
inline void end_streams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// body(i, part) for vectors at i = 0, lanes, ...; part loads and stores those lanes that exist.
template <class T, class Body>
inline void for_vectors(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) body(i, Whole<T>());
  if (i < n) body(i, Tail<T>(n - i));
}

// The same with streaming stores to out + i.
template <class T, class Body>
inline void for_streamed_vectors(const T* out, int64_t n, const Body& body) {
  int64_t i = -reinterpret_cast<intptr_t>(out) % kVectorBytes / static_cast<int64_t>(sizeof(T));
  if (i < 0) i += kLanes<T>;
  if (i > n) i = n;
  if (i > 0) body(0, Tail<T>(i));
  for (; i + kLanes<T> <= n; i += kLanes<T>) body(i, Streamed<T>());
  if (i < n) body(i, Tail<T>(n - i));
}

// Fetches `next`, which is read soon, while something else is computed.
template <class T>
inline void fetch_ahead(const T* next, int64_t i) {
  if (next) __builtin_prefetch(next + i, 0, 2);
}

// The same for data that is not read again soon: it displaces nothing in the third cache.
template <class T>
inline void fetch_past(const T* next, int64_t i) {
  if (next) __builtin_prefetch(next + i, 0, 0);
}

constexpr int64_t kLongRow = 256;  // shorter rows have too few whole vectors to stream

// Calls body(i, part) for all vectors of a row of results.
template <bool streams, class T, class Body>
inline void write_row(const T* out, int64_t n, const Body& body) {
  if constexpr (streams)
    for_streamed_vectors<T>(out, n, body);
  else
    for_vectors<T>(n, body);
}

// The sum of the vectors term(i, part).
template <class T, class Term>
inline T sum_vectors(int64_t n, const Term& term) {
  constexpr int64_t kWidth = kLanes<T>;
  Vector<T> sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) sum[j] += term(i + j * kWidth, Whole<T>());
  }
  for (; i + kWidth <= n; i += kWidth) sum[0] += term(i, Whole<T>());
  if (i < n) {
    const Tail<T> rest(n - i);
    sum[1] += rest.keep(term(i, rest));
  }
  return add_lanes<T>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

}  // namespace needle::NEEDLE_ISA
