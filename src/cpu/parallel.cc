// How many threads a parallel region may use.
#include <omp.h>
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

int threads() { return count; }
void set_threads(int32_t n) { count = n < 1 ? all : n; }

}  // namespace needle::NEEDLE_ISA
