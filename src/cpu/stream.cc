// The sizes of the caches, from which size on results are stored past them, and what depends on
// the processor's kind.
#include <cinttypes>
#include <cstdio>
#include <cstring>

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

static bool is_zen() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}
static bool zen = is_zen();
static int64_t streaming = half, elementwise_streaming = kStreamBytes, second_caches = 0;

int64_t streaming_bytes() { return streaming; }
// Zen's prefetching goes on over a page's end (within a huge page), and what is fetched ahead in
// software only is in its way: Adam of 16 Mi parameters takes 1.2 times as long on Zen 4. The
// others' begins anew with each page.
bool runs_over_pages() { return zen; }
// Zen 4: gather of single elements takes 0.5 to 0.8 of the time.
bool gathers_by_loads() { return zen; }
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
void count_as_zen(int32_t yes) { zen = yes < 0 ? is_zen() : yes != 0; }

}  // namespace needle::NEEDLE_ISA
