// Tasks that read through memory. Each thread walks a stretch of its own: two that take turns at
// neighbouring tasks measured up to 1.5 times as long, because no stream then lasts long enough for
// the processor to run ahead of it.
#pragma once
#include <algorithm>
#include <atomic>

#include "axes.h"
#include "stream.h"

namespace needle::NEEDLE_ISA {

struct alignas(64) Span {
  std::atomic<int64_t> taken;
  int64_t begin, end;

  void set(int64_t first, int64_t last) {
    taken.store(0, std::memory_order_relaxed);
    begin = first;
    end = last;
  }
  int64_t size() const { return end - begin; }
  int64_t next() { return taken.fetch_add(1, std::memory_order_relaxed); }

  // The task that is taken as number i. From the end they come in groups, each of which is walked
  // forwards, because a stream that begins anew with every task is slower.
  int64_t task(int64_t i, bool backwards) const {
    constexpr int64_t kGroup = 8;
    if (!backwards) return begin + i;
    const int64_t mirrored = size() - 1 - i, first = mirrored / kGroup * kGroup;
    const int64_t last = (first + kGroup < size() ? first + kGroup : size()) - 1;
    return begin + first + last - mirrored;
  }
};

// body(task, thread) for all tasks: those of the thread's own stretch in order, or from its end;
// then what is left of the others'.
template <class Body>
inline void run_spans(int team, int64_t tasks, bool backwards, const Body& body) {
  if (team <= 1) {
    Span all;
    all.set(0, tasks);
    for (int64_t i = 0; i < tasks; ++i) body(all.task(i, backwards), 0);
    return;
  }
  Span spans[kMostThreads];
  for (int i = 0; i < team; ++i) spans[i].set(tasks * i / team, tasks * (i + 1) / team);
  parallel(team, [&](int thread) {
    for (int turn = 0; turn < team; ++turn) {
      Span& span = spans[(thread + turn) % team];
      for (int64_t i; (i = span.next()) < span.size();) body(span.task(i, backwards), thread);
    }
  });
}

// body(begin, end) for pieces of [0, n), which together move so many bytes. If those have left the
// second caches, threads whose processors are slower for a while, because other programs use them
// or what they share with others, leave pieces to the others: on a virtual machine functions of
// 1 Mi elements that compute much take 0.9 of the time. Else each keeps what is in its cache.
template <class Body>
inline void run_pieces(int64_t n, int64_t bytes, const Body& body) {
  constexpr int64_t kPieceBytes = 256 << 10;
  const int team = threads();
  if (bytes <= second_caches_bytes())
    return parallel(team, [&](int64_t i) { body(n * i / team, n * (i + 1) / team); });
  const int64_t pieces = team * std::max<int64_t>(1, bytes / (team * kPieceBytes));
  run_spans(team, pieces, false,
            [&](int64_t i, int) { body(n * i / pieces, n * (i + 1) / pieces); });
}

}  // namespace needle::NEEDLE_ISA
