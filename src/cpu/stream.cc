// The sizes of the caches, from which size on results are stored past them, and what depends on
// the processor's kind.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "elementwise.h"
#include "stream.h"

namespace needle::NEEDLE_ISA {

// Linux tells the size; sysconf(_SC_LEVEL3_CACHE_SIZE) counts it once for each core on some AMD
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
// Half of the last cache: what is larger has left it, displaced by the inputs, before it is read.
// But no more than 16 MiB: larger caches are shared by more cores and are hardly faster than memory
// (105 MiB of a Sapphire Rapids: a norm and reading its result take 0.9 of the time if 16 MiB go
// past the caches, 0.8 if 24 MiB do).
static const int64_t half = cache < 32 << 20 ? cache / 2 : 16 << 20;

// The generation of AMD's Zen, of those measured: 1 also for Zen 2, 4 for Zen 3, 5 from Zen 5 on;
// 0: another processor.
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
// The prefetching of Zen 4 goes on over a page's end (within a huge page), and what is fetched
// ahead in software only is in its way. The others' begins anew with each page. On Zen 5 what is
// made for the others takes 0.85 (maxima of rows) and 0.45 (where, 16 Mi) of the time, on Zen 1
// 0.77 (variances) to 1.07 (x < y, 16 Mi).
bool runs_over_pages() { return zen == 4; }
// If they are, Adam of 16 Mi parameters takes 1.2 times as long on Zen 4, up to 1.1 times on Zen 5,
// and 0.95 of the time on Sapphire Rapids.
bool fetches_updates() { return zen == 0; }
// Zen 5: sums of 64 MB take 0.78 to 0.9 of the time, maxima 0.85; Zen 1: 0.9 to 0.97.
bool reads_apart() { return zen == 1 || zen == 5; }
// The last cache of Zen 5 keeps more of what is read in the same order each time (sums of 64 MB:
// 0.83 of the time).
bool rereads_in_order() { return zen == 5; }
// Zen 5: gradients of layer norm, of whose inputs one has just been read, take 0.95 of the time.
bool reads_past_caches() { return zen == 5; }
// Zen 1 and 4: gather of single elements takes 0.5 to 0.8 of the time; Zen 5: 1.7.
bool gathers_by_loads() { return zen == 1 || zen == 4; }
// Zen 5: 0.6 of the time; Emerald Rapids: 0.86; Zen 1 and 4 gather everything by loads.
bool gathers_near_by_loads() { return !gathers_by_loads(); }
// Zen 5: 0.5 of the time; Emerald Rapids: 1.4 to 1.8.
bool multiplies_pairs() { return zen != 0; }
// If they are, functions in caches take 1.1 to 1.7 of the time on Zen.
bool fetches_results() { return zen == 0; }
// Zen's third cache keeps what fits: functions of 16 Mi bools take 0.5 to 0.8 of the time. Others'
// do not, as far as measured, but a sixteenth of a very large one does (480 MiB of an Intel Granite
// Rapids: a row of bools repeated 16 Mi times takes 0.82 of the time).
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
