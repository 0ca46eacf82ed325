// The sizes of the caches, from which size on results are stored past them, and what depends on
// the processor's kind.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/table.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {

// Linux tells the size; sysconf(_SC_LEVEL3_CACHE_SIZE) counts it once for each core on some
// processors.
static int64_t read_cache_bytes(char level, int64_t size) {
  char path[] = "/sys/devices/system/cpu/cpu0/cache/index?/size";
  *std::strchr(path, '?') = level;
  if (FILE* file = std::fopen(path, "r")) {
    int64_t number = 0;
    char unit = 0;
    if (std::fscanf(file, "%" SCNd64 "%c", &number, &unit) == 2 && number > 0 && number < 1 << 30)
      size = unit == 'M' ? number << 20 : number << 10;
    std::fclose(file);
  }
  return size;
}

static const int64_t second_cache = read_cache_bytes('2', 1 << 20);
static const int64_t cache = read_cache_bytes('3', 32 << 20);
// Half of the last cache: larger results are displaced by the inputs before they are read.
// But no more than 16 MiB: larger caches are shared by more cores and are hardly faster than
// memory.
static const int64_t half = cache < 32 << 20 ? cache / 2 : 16 << 20;

// Processors of one vendor differ by generation in ways that the instruction set does not tell; the
// functions below say how. 1: family 17h and before, 4: 19h, 5: 1Ah and later; 0: all others.
static int read_zen() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  uint32_t version = 0, rest;
  if (__builtin_cpu_is("amd") && __get_cpuid(1, &version, &rest, &rest, &rest)) {
    const uint32_t family = (version >> 8 & 15) + (version >> 20 & 255);
    return family <= 23 ? 1 : family < 26 ? 4 : 5;
  }
#endif
  return 0;
}
static int zen = read_zen();
static int64_t streaming = half, elementwise_streaming = kStreamBytes, second_caches = 0;

int64_t streaming_bytes() { return streaming; }
// Whether the processor's prefetching goes on over a page's end (within a huge page): fetching in
// software then only gets in its way. Elsewhere prefetching begins anew with each page.
bool runs_over_pages() { return zen == 4; }
// Whether optimizers gain if their operands are fetched ahead.
bool fetches_updates() { return zen == 0; }
// Whether reductions of memory gain if their streams lie far apart.
bool reads_apart() { return zen == 1 || zen == 5; }
// Whether the last cache keeps more of an array that is read in the same order each time.
bool rereads_in_order() { return zen == 5; }
// Whether inputs that are not read again should leave the caches to those that are.
bool reads_past_caches() { return zen == 5; }
// Whether loads are faster than instructions that gather.
bool gathers_by_loads() { return zen == 1 || zen == 4; }
// The same where the elements lie in the first cache; false where everything is gathered by loads.
bool gathers_near_by_loads() { return !gathers_by_loads(); }
// Whether products of pairs of bfloat16 are faster than those of float32.
bool multiplies_pairs() { return zen != 0; }
// Whether functions gain if the lines of their results are fetched ahead.
bool fetches_results() { return zen == 0; }
// Some third caches keep whatever fits. Others do not, but a very large one keeps a sixteenth of
// its size.
int64_t kept_bytes() { return zen == 0 ? std::min(cache / 16, 2 * streaming) : 2 * streaming; }
int64_t elementwise_streaming_bytes() { return elementwise_streaming; }
int64_t second_cache_bytes() { return second_cache; }
int64_t second_caches_bytes() {
  return second_caches > 0 ? second_caches : threads() * second_cache;
}
void set_streaming_bytes(int64_t bytes) {
  streaming = bytes > 0 ? bytes : half;
  elementwise_streaming = bytes > 0 ? bytes : kStreamBytes;
  second_caches = bytes / 2;
}
void count_as_zen(int32_t generation) { zen = generation < 0 ? read_zen() : generation; }

}  // namespace needle::NEEDLE_ISA
