// How many threads a parallel region may use.
#include <omp.h>
#include <unistd.h>
#include <cstdlib>

#include "elementwise.h"

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

static const int64_t streaming = half_of_cache();

int64_t streaming_bytes() { return streaming; }
int threads() { return count; }
void set_threads(int32_t n) { count = n < 1 ? all : n; }

}  // namespace needle::NEEDLE_ISA
