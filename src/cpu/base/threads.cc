// How many threads there are, and the pool that runs their shares.
#include "base/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace needle::NEEDLE_ISA {
namespace {

// A thread that waits for work burns its processor for so long before it sleeps: the Python
// between two operations of a training step is shorter, waking a thread takes a fraction of it.
constexpr std::chrono::microseconds kSpin{200};
// One that was woken too late for its share burns its own for longer: the caller may be busy with
// that share until it opens the next one. A thread that sleeps again at once can miss the shares of
// a whole series of operations that each take about as long as waking it.
constexpr std::chrono::microseconds kSpinWoken{2000};

int processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

int limited(int n) { return n < 1 ? 1 : n < kMostThreads ? n : kMostThreads; }

// Threads beyond these would wait for each other to get a processor: shares are run one after the
// other instead. set_threads may lower it to what a container's quota allows.
std::atomic<int> cores{limited(processors())};

// OMP_NUM_THREADS, which users know and other libraries obey, or the processors of this process.
int wanted() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const int n = text ? std::atoi(text) : 0;
  return limited(n > 0 ? n : cores.load());
}

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Waits until done() is true, or for so long; returns what done() says.
template <class Done>
bool spin(const Done& done, std::chrono::microseconds longest = kSpin) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point end{};
  for (;;) {
    for (int i = 0; i < 128; ++i) {
      if (done()) return true;
      pause();
    }
    const auto now = Clock::now();  // not at once: most waits are shorter than asking takes
    if (end == Clock::time_point{}) end = now + longest;
    if (now >= end) return done();
  }
}

class Pool {
 public:
  void run(int shares, Share call, const void* body);

 private:
  bool take_share(int preferred);
  void work(int preferred);
  void grow(int workers);
  void wake();

  std::atomic<bool> busy_{false};
  int workers_ = 0;
  // In one line of the cache, because who sees an open share reads the others next.
  alignas(64) std::atomic<uint64_t> open_{0};  // a bit for each share that nobody has taken
  Share call_ = nullptr;
  const void* body_ = nullptr;
  alignas(64) std::atomic<int> unfinished_{0};  // shares
  alignas(64) std::atomic<int> asleep_{0};
  std::mutex mutex_;
  std::condition_variable opened_;
};

// Runs a share if one is open: the preferred one, so that a thread meets what it has in its cache.
bool Pool::take_share(int preferred) {
  uint64_t open = open_.load(std::memory_order_acquire);
  while (open) {
    const uint64_t own = uint64_t{1} << preferred, taken = open & own ? own : open & -open;
    if (!open_.compare_exchange_weak(open, open & ~taken, std::memory_order_acq_rel)) continue;
    call_(body_, __builtin_ctzll(taken));
    unfinished_.fetch_sub(1, std::memory_order_release);
    return true;
  }
  return false;
}

void Pool::work(int preferred) {
  const auto has_work = [this] { return open_.load(std::memory_order_relaxed) != 0; };
  auto longest = kSpin;
  for (;;) {
    if (!spin(has_work, longest)) {
      std::unique_lock<std::mutex> lock(mutex_);
      asleep_.fetch_add(1);
      if (open_.load() == 0) opened_.wait(lock);
      asleep_.fetch_sub(1);
      longest = kSpinWoken;
    }
    while (take_share(preferred)) longest = kSpin;
  }
}

void Pool::grow(int workers) {
  for (; workers_ < workers; ++workers_) {
    try {
      std::thread([this, number = workers_ + 1] { work(number); }).detach();
    } catch (const std::exception&) {  // no threads or memory left: those there are do it all
      return;
    }
  }
}

// Either a worker sees the open shares before it sleeps, or this sees that it sleeps.
void Pool::wake() {
  if (asleep_.load() == 0) return;
  mutex_.lock();  // who has looked for shares and not yet begun to wait holds it
  mutex_.unlock();
  opened_.notify_all();
}

void Pool::run(int shares, Share call, const void* body) {
  if (shares <= 1 || busy_.exchange(true, std::memory_order_acquire)) {  // or another has the pool
    for (int share = 0; share < shares; ++share) call(body, share);
    return;
  }
  grow(std::min(shares, cores.load()) - 1);
  call_ = call;
  body_ = body;
  // The first share is not offered: to take it would cost the others time at the same line.
  unfinished_.store(shares - 1, std::memory_order_relaxed);
  open_.store((shares < 64 ? (uint64_t{1} << shares) - 1 : ~uint64_t{0}) - 1);
  wake();
  call(body, 0);
  while (take_share(0)) continue;
  const auto finished = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
  while (!spin(finished)) std::this_thread::yield();  // the last share may need this processor
  busy_.store(false, std::memory_order_release);
}

// Never destroyed: its threads may outlive everything else.
Pool* const pool = new Pool;

// A forked process has none of the threads, but everything they shared: it begins anew in the same
// place, because it may have no memory for another.
[[maybe_unused]] const bool renewed_after_fork = [] {
#if defined(__linux__)
  return pthread_atfork(nullptr, nullptr, [] { new (pool) Pool; }) == 0;
#else
  return false;
#endif
}();

std::atomic<int> count{wanted()};
thread_local bool alone = false;

}  // namespace

int threads() { return alone ? 1 : count.load(std::memory_order_relaxed); }
void set_alone(int32_t yes) { alone = yes != 0; }
void set_threads(int32_t n) {
  if (n < 0) cores = limited(-n);
  count = n < 1 ? wanted() : limited(n);
}

void run_shares(int shares, Share call, const void* body) { pool->run(shares, call, body); }

}  // namespace needle::NEEDLE_ISA
