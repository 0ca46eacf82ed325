#include "base/convert.h"

#include "isa/lanes.h"

namespace needle::NEEDLE_ISA {
namespace {

template <class A, class S>
void read_run(A* __restrict out, const void* x, int64_t n, int64_t stride) {
  const S* from = static_cast<const S*>(x);
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = widen<A>(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = widen<A>(from[i * stride]);
  }
}

template <class S>
void read_truth(int64_t* __restrict out, const void* x, int64_t n, int64_t stride) {
  const S* from = static_cast<const S*>(x);
  for (int64_t i = 0; i < n; ++i) out[i] = from[i * stride] != S(0);
}

void read_truth_half(int64_t* __restrict out, const void* x, int64_t n, int64_t stride) {
  const uint16_t* from = static_cast<const uint16_t*>(x);
  for (int64_t i = 0; i < n; ++i) out[i] = (from[i * stride] & 0x7fff) != 0;
}

template <class A, class S>
void write_run(void* out, const A* __restrict x, int64_t n) {
  S* to = static_cast<S*>(out);
  for (int64_t i = 0; i < n; ++i) to[i] = narrow<S>(x[i]);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Interleaves with zeros, because the compiler's code would widen first and shift then.
template <>
void read_run<float, BFloat16>(float* __restrict out, const void* x, int64_t n, int64_t stride) {
  const BFloat16* from = static_cast<const BFloat16*>(x);
  const __m128i zero = _mm_setzero_si128();
  int64_t i = 0;
  for (; stride == 1 && i + 8 <= n; i += 8) {
    const __m128i each = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm_storeu_ps(out + i, _mm_castsi128_ps(_mm_unpacklo_epi16(zero, each)));
    _mm_storeu_ps(out + i + 4, _mm_castsi128_ps(_mm_unpackhi_epi16(zero, each)));
  }
  for (; i < n; ++i) out[i] = to_float(from[i * stride]);
}

// Of 16 numbers at a time: the compiler takes them out of the vectors in which they were rounded.
// NaN, which rounding could make infinite, are looked for in 32.
template <>
void write_run<float, BFloat16>(void* out, const float* __restrict x, int64_t n) {
  using Bits = Vector<uint32_t>;
  const auto rounded = [](const float* at) {
    const Bits bits = (Bits)load(at);
    return (__m256i)((bits + (bits >> 16 & 1u) + 0x7fffu) >> 16);
  };
  const auto is_any_nan = [](const float* at) {
    const __m256 first = _mm256_cmp_ps(load(at), load(at + 8), _CMP_UNORD_Q);
    const __m256 second = _mm256_cmp_ps(load(at + 16), load(at + 24), _CMP_UNORD_Q);
    return _mm256_movemask_ps(_mm256_or_ps(first, second)) != 0;
  };
  BFloat16* to = static_cast<BFloat16*>(out);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int64_t j = i; j < i + 32; j += 16) {
      const __m256i both = _mm256_packus_epi32(rounded(x + j), rounded(x + j + 8));
      const __m256i in_order = _mm256_permute4x64_epi64(both, 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j), in_order);
    }
    if (__builtin_expect(is_any_nan(x + i), 0))
      for (int64_t j = i; j < i + 32; ++j) to[j] = to_bfloat16(x[j]);
  }
  for (; i < n; ++i) to[i] = to_bfloat16(x[i]);
}
#endif

#if defined(__F16C__)
template <>
void read_run<float, Half>(float* __restrict out, const void* x, int64_t n, int64_t stride) {
  const Half* from = static_cast<const Half*>(x);
  int64_t i = 0;
  for (; stride == 1 && i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
  for (; i < n; ++i) out[i] = to_float(from[i * stride]);
}

template <>
void write_run<float, Half>(void* out, const float* __restrict x, int64_t n) {
  Half* to = static_cast<Half*>(out);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
  }
  for (; i < n; ++i) to[i] = to_half(x[i]);
}
#endif

template <class S>
int64_t read_index(const void* x, int64_t position) {
  return static_cast<int64_t>(static_cast<const S*>(x)[position]);
}

}  // namespace

template <>
Read<float> reader<float>(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return read_run<float, float>;
    case kBFloat16:
      return read_run<float, BFloat16>;
    case kFloat16:
      return read_run<float, Half>;
    default:
      return nullptr;
  }
}

template <>
Read<double> reader<double>(DType dtype) {
  return dtype == kFloat64 ? read_run<double, double> : nullptr;
}

template <>
Read<int64_t> reader<int64_t>(DType dtype) {
  switch (dtype) {
    case kInt8:
      return read_run<int64_t, int8_t>;
    case kInt16:
      return read_run<int64_t, int16_t>;
    case kInt32:
      return read_run<int64_t, int32_t>;
    case kInt64:
      return read_run<int64_t, int64_t>;
    case kUInt8:
    case kBool:
      return read_run<int64_t, uint8_t>;
    default:
      return nullptr;
  }
}

template <>
Write<float> writer<float>(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return write_run<float, float>;
    case kFloat64:
      return write_run<float, double>;
    case kBFloat16:
      return write_run<float, BFloat16>;
    case kFloat16:
      return write_run<float, Half>;
    default:
      return nullptr;
  }
}

template <>
Write<double> writer<double>(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return write_run<double, float>;
    case kFloat64:
      return write_run<double, double>;
    default:
      return nullptr;
  }
}

template <>
Write<int64_t> writer<int64_t>(DType dtype) {
  switch (dtype) {
    case kInt8:
      return write_run<int64_t, int8_t>;
    case kInt16:
      return write_run<int64_t, int16_t>;
    case kInt32:
      return write_run<int64_t, int32_t>;
    case kInt64:
      return write_run<int64_t, int64_t>;
    case kUInt8:
      return write_run<int64_t, uint8_t>;
    case kBool:
      return write_run<int64_t, bool>;
    default:
      return nullptr;
  }
}

Read<int64_t> truth_reader(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return read_truth<float>;
    case kFloat64:
      return read_truth<double>;
    case kBFloat16:
    case kFloat16:
      return read_truth_half;
    case kInt8:
    case kUInt8:
    case kBool:
      return read_truth<uint8_t>;
    case kInt16:
      return read_truth<int16_t>;
    case kInt32:
      return read_truth<int32_t>;
    case kInt64:
      return read_truth<int64_t>;
    default:
      return nullptr;
  }
}

ReadIndex index_reader(DType dtype) {
  switch (dtype) {
    case kInt8:
      return read_index<int8_t>;
    case kInt16:
      return read_index<int16_t>;
    case kInt32:
      return read_index<int32_t>;
    case kInt64:
      return read_index<int64_t>;
    case kUInt8:
    case kBool:
      return read_index<uint8_t>;
    default:
      return nullptr;
  }
}

}  // namespace needle::NEEDLE_ISA
