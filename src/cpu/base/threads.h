// Threads. One pool for the process; a parallel region is a number of shares, and each thread that
// has nothing to do takes one. So nobody waits for a thread that the system has not let run yet:
// the one that asked does its share as well. (OpenMP's regions wait for all of their threads, which
// is very slow while two programs share the same processors.)
// A forked process starts threads of its own. Where two Python threads compute at once, one has the
// pool and the other computes alone.
#pragma once
#include "isa/isa.h"

namespace needle::NEEDLE_ISA {

constexpr int kMostThreads = 64;

using Share = void (*)(const void* body, int share);
void run_shares(int shares, Share call, const void* body);

// body(share) for 0 <= share < shares <= kMostThreads, each once, at the same time if threads are
// free. Waits for all. Bodies must not throw; a region within a region runs on the thread it is on.
template <class Body>
inline void parallel(int shares, const Body& body) {
  run_shares(
      shares, [](const void* b, int share) { (*static_cast<const Body*>(b))(share); }, &body);
}

}  // namespace needle::NEEDLE_ISA
