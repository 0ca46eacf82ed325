// Tasks that read through memory. Each thread walks a stretch of its own: if two took turns at
// neighbouring tasks, no stream would last long enough for the processor to run ahead of it.
#pragma once
#include <algorithm>
#include <atomic>

#include "base/axes.h"
#include "base/stream.h"

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
  int64_t left() const { return size() - taken.load(std::memory_order_relaxed); }
  int64_t next() { return taken.fetch_add(1, std::memory_order_relaxed); }

  // The task that is taken as number i. From the end they come in groups, each of which is walked
  // forwards, because a stream that begins anew with every task is slower.
  int64_t task(int64_t i, bool backwards, int64_t group) const {
    if (!backwards) return begin + i;
    const int64_t mirrored = size() - 1 - i, first = mirrored / group * group;
    const int64_t last = (first + group < size() ? first + group : size()) - 1;
    return begin + first + last - mirrored;
  }
};

// body(task, thread) for all tasks: those of the thread's own stretch in order, or from its end in
// groups; then what is left of the others', but for the last kOwn tasks of each.
template <int64_t kGroup = 8, int64_t kOwn = 0, class Body>
inline void run_spans(int team, int64_t tasks, bool backwards, const Body& body) {
  if (team <= 1) {
    Span all;
    all.set(0, tasks);
    for (int64_t i = 0; i < tasks; ++i) body(all.task(i, backwards, kGroup), 0);
    return;
  }
  Span spans[kMostThreads];
  for (int i = 0; i < team; ++i) spans[i].set(tasks * i / team, tasks * (i + 1) / team);
  parallel(team, [&](int thread) {
    for (int turn = 0; turn < team; ++turn) {
      Span& span = spans[(thread + turn) % team];
      const int64_t own = turn == 0 ? 0 : kOwn;
      for (int64_t i; span.left() > own && (i = span.next()) < span.size();)
        body(span.task(i, backwards, kGroup), thread);
    }
  });
}

// Pieces of work that one thread takes from the front, others from the back.
class alignas(64) Offer {
 public:
  void open() { taken_.store(0, std::memory_order_release); }
  bool is_open() const { return taken_.load(std::memory_order_acquire) != kClosed; }
  bool is_finished(int64_t pieces) const {
    return finished_.load(std::memory_order_acquire) >= pieces;
  }
  void finish() { finished_.fetch_add(1, std::memory_order_release); }

  // Which piece, or -1: none is left, or they are not offered yet.
  int64_t take_first(int64_t pieces) { return take(kOneFirst, pieces).first; }
  int64_t take_last(int64_t pieces) {
    const int64_t last = take(1, pieces).last;
    return last < 0 ? last : pieces - 1 - last;
  }

 private:
  struct Taken {
    int64_t first, last;  // so many, before
  };
  Taken take(uint64_t which, int64_t pieces) {
    for (uint64_t now = taken_.load(std::memory_order_acquire);;) {
      const int64_t first = now / kOneFirst, last = now % kOneFirst;
      if (first + last >= pieces) return {-1, -1};
      if (taken_.compare_exchange_weak(now, now + which, std::memory_order_acq_rel))
        return {first, last};
    }
  }

  static constexpr uint64_t kOneFirst = uint64_t{1} << 32, kClosed = ~uint64_t{0};
  std::atomic<uint64_t> taken_{kClosed};
  std::atomic<int64_t> finished_{0};
};

// True and false in turn.
inline bool next_is_backwards() {
  static std::atomic<uint32_t> calls{0};
  return calls.fetch_add(1, std::memory_order_relaxed) % 2 != 0;
}

// body(begin, end) for pieces of [0, n), which together move so many bytes. If those fit into the
// second caches, each thread keeps what is in its own. If not:
// - Threads whose processors are slower for a while, because other programs use them or the caches
//   that they share, leave pieces to the other threads.
// - One call begins where the last one ended, because the caches still hold that part, be it a
//   result that is read now or an operand that is read again.
// - The last piece is left to its own thread, which is about to take it: another thread would leave
//   it in its own cache, where the next call begins. This matters most where caches are far apart.
template <class Body>
inline void run_pieces(int64_t n, int64_t bytes, const Body& body) {
  constexpr int64_t kPieceBytes = 256 << 10;
  const int team = threads();
  if (bytes <= second_caches_bytes())
    return parallel(team, [&](int64_t i) { body(n * i / team, n * (i + 1) / team); });
  const int64_t pieces = team * std::max<int64_t>(1, bytes / (team * kPieceBytes));
  run_spans<1, 1>(team, pieces, next_is_backwards(),
                  [&](int64_t i, int) { body(n * i / pieces, n * (i + 1) / pieces); });
}

}  // namespace needle::NEEDLE_ISA
