// Stores that go around the caches: results too large for them would have every line read from
// memory before it is overwritten.
#pragma once
#include <cstring>

#include "isa/isa.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace needle::NEEDLE_ISA {

constexpr int64_t kStreamBytes = 32 << 20;  // results from this size on, if nothing else is set
int64_t elementwise_streaming_bytes();      // the size that is set (stream.cc)
int64_t kept_bytes();                       // of inputs and result that the third cache keeps
bool fetches_results();                     // before lines of them are overwritten: does it gain?
int64_t second_cache_bytes();               // the size of one
int64_t second_caches_bytes();              // those of all threads together; tests set less
constexpr int64_t kStreamAlignment = 64;    // of what is written
// Written at a time. Small, so that reading and writing alternate often.
constexpr int64_t kStreamTileBytes = 512;
// The largest of them. If inputs are read from memory, fewer bytes at a time are better; where
// nothing is read, only the calls of the loop cost time.
inline int64_t stream_tile_bytes(bool reads) {
  return reads && runs_over_pages() ? kStreamTileBytes / 2 : kStreamTileBytes;
}

inline bool is_streamable(const void* out) {
  return reinterpret_cast<uintptr_t>(out) % kStreamAlignment == 0;
}

// Writes a tile by the widest stores. Narrow ones are slower, because half-filled lines leave the
// processor when loads get in between.
inline void stream(void* out, const void* tile, int64_t bytes) {
  auto* to = static_cast<char*>(out);
  auto* from = static_cast<const char*>(tile);
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 64 <= bytes; i += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
#elif defined(__AVX__)
  for (; i + 32 <= bytes; i += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
#elif defined(__SSE2__)
  for (; i + 16 <= bytes; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
#endif
  std::memcpy(to + i, from + i, static_cast<size_t>(bytes - i));
}

// Other threads see such stores late otherwise.
inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace needle::NEEDLE_ISA
