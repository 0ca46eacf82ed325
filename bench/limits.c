// What the machine can do: fused multiply-adds per second and bytes per second, on one thread; how
// far two processors are from each other.
// Compiled at run time by limits.py for this processor; several threads call it at once.

#include <stddef.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
enum { CHAINS = 12 };  // enough to hide the latency, few enough for the registers
typedef float vec __attribute__((vector_size(4 * WIDTH)));

long operations_per_turn(void) { return 2 * CHAINS * WIDTH; }

// n turns of independent chains of fused multiply-adds.
float fma_chains(long n) {
  vec acc[CHAINS];
  vec a = {0}, b = {0};
  for (int i = 0; i < WIDTH; i++) a[i] = 0.999f, b[i] = 1e-3f;
#pragma GCC unroll 12
  for (int k = 0; k < CHAINS; k++) acc[k] = b * (float)(k + 1);
  for (long i = 0; i < n; i++) {
#pragma GCC unroll 12
    for (int k = 0; k < CHAINS; k++) acc[k] = acc[k] * a + b;
  }
  float sum = 0;
#pragma GCC unroll 12
  for (int k = 0; k < CHAINS; k++) sum += acc[k][0];
  return sum;
}

// A line of the cache goes n times from one thread to the other and back: one calls `serve`, the
// other `answer`.
static _Alignas(128) int ball;

void serve(long n) {
  for (long i = 0; i < n; i++) {
    __atomic_store_n(&ball, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&ball, __ATOMIC_ACQUIRE) != 0) continue;
  }
}

void answer(long n) {
  for (long i = 0; i < n; i++) {
    while (__atomic_load_n(&ball, __ATOMIC_ACQUIRE) != 1) continue;
    __atomic_store_n(&ball, 0, __ATOMIC_RELEASE);
  }
}

void triad(float* restrict out, const float* restrict x, const float* restrict y, size_t n) {
  for (size_t i = 0; i < n; i++) out[i] = x[i] + 0.5f * y[i];
}

// The same with stores that do not read the line first; 64-byte aligned arrays.
void triad_stream(float* restrict out, const float* x, const float* y, size_t n) {
#if defined(__AVX__)
  __m256 half = _mm256_set1_ps(0.5f);
  for (size_t i = 0; i + 8 <= n; i += 8) {
    __m256 v = _mm256_mul_ps(half, _mm256_loadu_ps(y + i));
    _mm256_stream_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(x + i), v));
  }
  _mm_sfence();
#else
  triad(out, x, y, n);
#endif
}

float read_sum(const float* x, size_t n) {
  vec acc[8] = {{0}};
  for (size_t i = 0; i + 8 * WIDTH <= n; i += 8 * WIDTH)
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) acc[k] += *(const vec*)(x + i + WIDTH * k);
  float sum = 0;
  for (int k = 0; k < 8; k++)
    for (int i = 0; i < WIDTH; i++) sum += acc[k][i];
  return sum;
}
