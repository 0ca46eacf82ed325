// Included first by every kernel file: one namespace per instruction set names the frames in
// profiles and stack traces; the linker's version script keeps the objects apart.
#pragma once
#ifndef NEEDLE_ISA
#error "compile kernels with -DNEEDLE_ISA=<instruction set>"
#endif
#include "kernels.h"

namespace needle::NEEDLE_ISA {

int threads();                      // number for a parallel region (threads.cc)
int64_t streaming_bytes();          // larger results are stored past the caches (stream.cc)
bool runs_over_pages();             // does prefetching go on over the end of a page?
bool fetches_updates();             // do optimizers gain by fetching ahead in software?
bool reads_apart();                 // do reductions gain by reading far apart places at once?
bool rereads_in_order();            // should such reads repeat their order each time?
bool reads_past_caches();           // should inputs that are read once bypass the third cache?
bool gathers_by_loads();            // are single loads faster than its gather instructions?
bool gathers_near_by_loads();       // the same, from the first cache?
bool multiplies_pairs();            // are products of bfloat16 pairs faster than of float32?
constexpr int64_t kSerial = 32768;  // elements below which a region runs on one thread

}  // namespace needle::NEEDLE_ISA
