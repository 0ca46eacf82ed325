// How many threads a parallel region may use.
#include <omp.h>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "elementwise.h"
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
// But no more than 16 MiB: larger caches are shared by more cores and are hardly faster than memory
// (105 MiB of a Sapphire Rapids: a norm and reading its result take 0.9 of the time if 16 MiB go
// past the caches, 0.8 if 24 MiB do). Linux tells the size; sysconf(_SC_LEVEL3_CACHE_SIZE) counts
// it once for each core on some AMD processors.
static int64_t half_of_cache() {
  int64_t size = 32 << 20;
  if (FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r")) {
    int64_t number = 0;
    char unit = 0;
    if (std::fscanf(file, "%" SCNd64 "%c", &number, &unit) == 2 && number > 0 && number < 1 << 30)
      size = unit == 'M' ? number << 20 : number << 10;
    std::fclose(file);
  }
  return size < 32 << 20 ? size / 2 : 16 << 20;
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

void set_threads(int32_t n) { count = n < 1 ? all : n; }

}  // namespace needle::NEEDLE_ISA
