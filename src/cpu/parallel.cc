// How many threads a parallel region may use.
#include <omp.h>

#include "elementwise.h"

namespace needle::NEEDLE_ISA {

// OMP_NUM_THREADS, or the processors of this process; read once, because others may change it.
static const int all = omp_get_max_threads();
static int count = all;

int threads() { return count; }
void set_threads(int32_t n) { count = n < 1 ? all : n; }

}  // namespace needle::NEEDLE_ISA
