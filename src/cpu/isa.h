// Included first by every kernel file: one namespace per instruction set names the frames in
// profiles and stack traces; the linker's version script keeps the objects apart.
#pragma once
#ifndef NEEDLE_ISA
#error "compile kernels with -DNEEDLE_ISA=<instruction set>"
#endif
#include "kernels.h"

namespace needle::NEEDLE_ISA {

int threads();                      // how many a parallel region may use (threads.cc)
int64_t streaming_bytes();          // from which on results are stored past the caches (stream.cc)
bool runs_over_pages();             // does the processor read ahead over a page's end by itself?
bool fetches_updates();             // are the arrays of updates better fetched ahead in software?
bool reads_apart();                 // does it read faster at places far apart at once?
bool rereads_in_order();            // is what is read apart better read in the same order again?
bool reads_past_caches();           // is what is read once better fetched past the third cache?
bool gathers_by_loads();            // are single loads faster than its gather instructions?
bool gathers_near_by_loads();       // the same, from the first cache?
bool multiplies_pairs();            // of bfloat16: is that faster than to multiply float32?
constexpr int64_t kSerial = 32768;  // elements below which a region runs on one thread

}  // namespace needle::NEEDLE_ISA
