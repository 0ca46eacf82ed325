// Vectors of the widest kind that this instruction set has, on GCC's vector extensions: the
// operators + - * < and ?: work lane by lane, and the compiler contracts a * b + c into one FMA.
#pragma once
#include <cstring>

#include "isa.h"

#if defined(__AVX512F__)
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
};

#if defined(__AVX512F__)
template <>
struct Tail<float> {
  __mmask16 lanes;
  explicit Tail(int64_t n) : lanes(static_cast<__mmask16>((1u << n) - 1)) {}
  Vector<float> load(const float* p) const { return _mm512_maskz_loadu_ps(lanes, p); }
  void store(float* p, const Vector<float>& v) const { _mm512_mask_storeu_ps(p, lanes, v); }
};

template <>
struct Tail<double> {
  __mmask8 lanes;
  explicit Tail(int64_t n) : lanes(static_cast<__mmask8>((1u << n) - 1)) {}
  Vector<double> load(const double* p) const { return _mm512_maskz_loadu_pd(lanes, p); }
  void store(double* p, const Vector<double>& v) const { _mm512_mask_storeu_pd(p, lanes, v); }
};
constexpr bool kMaskedLoads = true;
#else
constexpr bool kMaskedLoads = false;
#endif

}  // namespace needle::NEEDLE_ISA
