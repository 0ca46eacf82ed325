// How many threads a parallel region may use.
#include <omp.h>

#include "elementwise.h"

namespace needle::NEEDLE_ISA {

static int count = omp_get_max_threads();  // OMP_NUM_THREADS, or the processors of this process

int threads() { return count; }
void set_threads(int32_t n) { count = n < 1 ? 1 : n; }

}  // namespace needle::NEEDLE_ISA
