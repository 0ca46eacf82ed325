// How many threads a parallel region may use.
#include <omp.h>
#include <unistd.h>
#include <cstdlib>

#include <atomic>

#include "elementwise.h"
#include "spans.h"
#include "stream.h"

namespace needle::NEEDLE_ISA {

// OMP_NUM_THREADS, or the processors of this process; not omp_get_max_threads(), which other
// libraries in the process change.
static int wanted() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const int n = text ? std::atoi(text) : 0;
  return n > 0 ? n : omp_get_num_procs();
}

static const int all = wanted();
static int count = all;

// Half of the last cache: what is larger has left it, displaced by the inputs, before it is read.
static int64_t half_of_cache() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  const int64_t size = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (size > 0) return size / 2;
#endif
  return int64_t{16} << 20;
}

static const int64_t half = half_of_cache();
static int64_t streaming = half, elementwise_streaming = kStreamBytes;

int64_t streaming_bytes() { return streaming; }
int64_t elementwise_streaming_bytes() { return elementwise_streaming; }
void set_streaming_bytes(int64_t bytes) {
  streaming = bytes > 0 ? bytes : half;
  elementwise_streaming = bytes > 0 ? bytes : kStreamBytes;
}
int threads() { return count; }

bool begins_at_end(int64_t bytes) {
  static std::atomic<uint32_t> passes{0};
  return bytes >= streaming && (passes.fetch_add(1, std::memory_order_relaxed) & 1);
}

void set_threads(int32_t n) { count = n < 1 ? all : n; }

}  // namespace needle::NEEDLE_ISA
