// The emulator's scheduler: blocks one after another, a block's threads as fibres.
//
// A fibre is entered once by swapcontext, from then on by _longjmp, which makes no system call;
// between kernels it waits for the next one, with its stack. A fibre that waits hands over to the
// scheduler, which runs the others and then looks whether a barrier is complete.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "cuda_emu.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMU_SANITIZED 1
#endif

namespace emu {

namespace {

constexpr size_t kStack = 64 * 1024, kSharedLimit = 48 * 1024;
constexpr size_t kSharedMost = 227 * 1024;  // where a launch asks for more than the limit
constexpr int kMaxThreads = 1024;

enum Status { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

struct Copy {
  void* to;
  const void* from;
  size_t nbytes;
};

struct State {
  Fibre fibre;
  Status status;
  const char* file;
  int line;
  unsigned mask;
  uint64_t given;                    // to its warp
  int from;                          // the lane whose value it reads, or -1
  uint64_t received;                 // that, when the barrier is complete
  unsigned votes;                    // which lanes gave something that is not 0
  void (*work)(void* const* lanes);  // combines the values of the lanes
  std::vector<Copy> copies;
  std::deque<std::vector<Copy>> groups;  // of copies, ended
  bool started;
  char* stack;
  ucontext_t context;
  jmp_buf here;
  void* fake_stack;
};

using Kernel = void (*)(const unsigned char* words);

std::vector<State*> pool;
jmp_buf scheduler;
ucontext_t scheduler_context;
Kernel kernel;
const unsigned char* words;
int threads;
uint64_t block_serial;
size_t shared_bytes, dynamic_bytes;
alignas(128) char dynamic_shared[kSharedMost];
char message[512];
#ifdef EMU_SANITIZED
void* scheduler_fake;
const void* scheduler_stack;
size_t scheduler_size;
#endif

void to_scheduler(State* state) {
  if (_setjmp(state->here) == 0) {
#ifdef EMU_SANITIZED
    __sanitizer_start_switch_fiber(&state->fake_stack, scheduler_stack, scheduler_size);
#endif
    _longjmp(scheduler, 1);
  }
#ifdef EMU_SANITIZED
  __sanitizer_finish_switch_fiber(state->fake_stack, &scheduler_stack, &scheduler_size);
#endif
}

void fibre_main() {
#ifdef EMU_SANITIZED
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
  for (;;) {
    State* state = static_cast<State*>(emu_fibre->state);
    kernel(words);
    state->status = kDone;
    to_scheduler(state);
  }
}

void run(State* state) {
  emu_fibre = &state->fibre;
  if (_setjmp(scheduler) == 0) {
#ifdef EMU_SANITIZED
    __sanitizer_start_switch_fiber(&scheduler_fake, state->stack, kStack);
#endif
    if (state->started) _longjmp(state->here, 1);
    state->started = true;
    getcontext(&state->context);
    state->context.uc_stack.ss_sp = state->stack;
    state->context.uc_stack.ss_size = kStack;
    state->context.uc_link = nullptr;
    makecontext(&state->context, fibre_main, 0);
    swapcontext(&scheduler_context, &state->context);
  }
#ifdef EMU_SANITIZED
  __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
}

State* state_of(int linear) {
  while (static_cast<int>(pool.size()) <= linear) {
    State* state = new State();
    state->stack = static_cast<char*>(malloc(kStack));
    state->fibre.state = state;
    pool.push_back(state);
  }
  return pool[linear];
}

// Fibres that stopped in the middle of a kernel start again; their frames are leaked.
void forget_fibres() {
  for (State* state : pool) state->started = false;
#ifdef EMU_SANITIZED
  for (State* state : pool) __asan_unpoison_memory_region(state->stack, kStack);
#endif
}

void fail(const char* what, const char* file, int line) {
  if (message[0]) return;
  const Dim3 b = emu_block_index, t = emu_fibre->thread;
  snprintf(message, sizeof message, "%s:%d: %s (block %u,%u,%u, thread %u,%u,%u)", file, line, what,
           b.x, b.y, b.z, t.x, t.y, t.z);
}

State* current() { return static_cast<State*>(emu_fibre->state); }

void wait(Status status, unsigned mask, const char* file, int line) {
  State* state = current();
  state->status = status;
  state->mask = mask;
  state->file = file;
  state->line = line;
  to_scheduler(state);
}

bool same_place(const State* a, const State* b) {
  return a->line == b->line && strcmp(a->file, b->file) == 0;
}

// All have stopped. Releases those at a complete barrier; false without one.
bool release_warps() {
  bool released = false;
  for (int first = 0; first < threads; first += 32) {
    const int lanes = std::min(32, threads - first);
    for (int i = 0; i < lanes; ++i) {
      State* one = pool[first + i];
      if (one->status != kAtWarpBarrier) continue;
      bool complete = true;
      for (int j = 0; j < lanes && complete; ++j) {
        if (!(one->mask >> j & 1)) continue;
        State* other = pool[first + j];
        complete =
            other->status == kAtWarpBarrier && other->mask == one->mask && same_place(one, other);
      }
      if (!complete) continue;
      const unsigned mask = one->mask;
      unsigned votes = 0;
      if (one->work) {
        void* gifts[32];
        for (int j = 0; j < lanes; ++j) gifts[j] = reinterpret_cast<void*>(pool[first + j]->given);
        one->work(gifts);
      }
      for (int j = 0; j < lanes; ++j)
        if (mask >> j & 1 && pool[first + j]->given) votes |= 1u << j;
      for (int j = 0; j < lanes; ++j) {
        if (!(mask >> j & 1)) continue;
        State* lane = pool[first + j];
        lane->received = lane->from < 0 ? 0 : pool[first + lane->from]->given;
        lane->votes = votes;
        lane->status = kReady;
      }
      released = true;
    }
  }
  return released;
}

void explain_deadlock() {
  const State* waiting = nullptr;
  for (int i = 0; i < threads; ++i)
    if (pool[i]->status != kDone && !waiting) waiting = pool[i];
  emu_fibre = &pool[waiting->fibre.linear]->fibre;
  for (int i = 0; i < threads; ++i) {
    const State* other = pool[i];
    char what[256];
    if (other->status == kDone) {
      snprintf(what, sizeof what, "barrier not reached by all: thread %d has ended", i);
    } else if (!same_place(waiting, other) || other->status != waiting->status) {
      snprintf(what, sizeof what, "two different barriers: thread %d waits at %s:%d", i,
               other->file, other->line);
    } else {
      continue;
    }
    fail(what, waiting->file, waiting->line);
    return;
  }
  fail("a warp's barrier whose mask names lanes that do not come", waiting->file, waiting->line);
}

// Returns whether the block continues.
bool release() {
  if (message[0]) return false;
  int done = 0, at_barrier = 0;
  for (int i = 0; i < threads; ++i) {
    done += pool[i]->status == kDone;
    at_barrier += pool[i]->status == kAtBlockBarrier;
  }
  if (done == threads) return false;
  if (release_warps()) return true;
  bool together = at_barrier == threads;
  for (int i = 1; i < threads && together; ++i) together = same_place(pool[0], pool[i]);
  if (!together) {
    explain_deadlock();
    return false;
  }
  for (int i = 0; i < threads; ++i) pool[i]->status = kReady;
  return true;
}

uint64_t random_state;
unsigned random_below(unsigned n) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<unsigned>((random_state >> 33) % n);
}

// order: 0 as numbered, 1 reversed, 2 shuffled anew for each round.
void arrange(std::vector<int>& sequence, int order) {
  for (int i = 0; i < threads; ++i) sequence[i] = order == 1 ? threads - 1 - i : i;
  if (order == 2)
    for (int i = threads - 1; i > 0; --i) std::swap(sequence[i], sequence[random_below(i + 1)]);
}

void run_block(int order, std::vector<int>& sequence) {
  ++block_serial;
  shared_bytes = dynamic_bytes;
  memset(dynamic_shared, 0xff, dynamic_bytes);
  for (int i = 0; i < threads; ++i) {
    pool[i]->status = kReady;
    pool[i]->copies.clear();
    pool[i]->groups.clear();
  }
  do {
    arrange(sequence, order);
    for (int i : sequence)
      if (pool[i]->status == kReady && !message[0]) run(pool[i]);
  } while (release());
}

}  // namespace

extern "C" {

Fibre* emu_fibre;
Dim3 emu_block_index, emu_block_size, emu_grid_size;

void emu_block_barrier(const char* file, int line) { wait(kAtBlockBarrier, 0, file, line); }

void emu_warp_barrier(unsigned mask, const char* file, int line) {
  emu_exchange(mask, 0, -1, file, line);
}

uint64_t emu_exchange(unsigned mask, uint64_t value, int from, const char* file, int line) {
  State* state = current();
  const int first = static_cast<int>(state->fibre.linear) / 32 * 32;
  const int lanes = std::min(32, threads - first);
  if (lanes < 32) mask &= (1u << lanes) - 1;
  if (!(mask >> lane() & 1)) {
    fail("the mask lacks the lane that asks", file, line);
    to_scheduler(state);
  }
  if (from >= lanes || (from >= 0 && !(mask >> from & 1))) {
    fail("a shuffle reads a lane that its mask lacks", file, line);
    to_scheduler(state);
  }
  state->given = value;
  state->from = from;
  state->work = nullptr;
  wait(kAtWarpBarrier, mask, file, line);
  return state->received;
}

unsigned emu_ballot(unsigned mask, int predicate, const char* file, int line) {
  emu_exchange(mask, predicate != 0, -1, file, line);
  return current()->votes;
}

void emu_together(void* own, void (*work)(void* const* lanes), const char* file, int line) {
  State* state = current();
  if (threads % 32) {
    fail("the block does not have whole warps", file, line);
    to_scheduler(state);
  }
  state->given = reinterpret_cast<uint64_t>(own);
  state->from = -1;
  state->work = work;
  wait(kAtWarpBarrier, 0xffffffffu, file, line);
}

void emu_copy_later(void* to, const void* from, size_t nbytes) {
  current()->copies.push_back({to, from, nbytes});
}

void emu_end_copies() {
  current()->groups.push_back(std::move(current()->copies));
  current()->copies.clear();
}

void emu_wait_for_copies(size_t groups_left) {
  State* state = current();
  for (; state->groups.size() > groups_left; state->groups.pop_front())
    for (const Copy& one : state->groups.front())
      one.from ? memcpy(one.to, one.from, one.nbytes) : memset(one.to, 0, one.nbytes);
}

void emu_shared(void* variable, size_t nbytes, uint64_t* block, const char* file, int line) {
  if (*block == block_serial) return;
  *block = block_serial;
  memset(variable, 0xff, nbytes);
  shared_bytes += nbytes;
  if (shared_bytes - dynamic_bytes > kSharedLimit || shared_bytes > kSharedMost) {
    fail("more than 48 KiB of shared memory, or with dynamic more than 227 KiB", file, line);
    to_scheduler(current());
  }
}

void* emu_dynamic_shared() { return dynamic_shared; }

void emu_fail(const char* what, const char* file, int line) {
  fail(what, file, line);
  to_scheduler(current());
}

// Runs a kernel. Returns null, or an error message.
const char* emu_launch(Kernel entry, const unsigned* grid, const unsigned* block, size_t shared,
                       const unsigned char* parameters, int order, uint64_t seed) {
  message[0] = 0;
  emu_grid_size = {grid[0], grid[1], grid[2]};
  emu_block_size = {block[0], block[1], block[2]};
  threads = static_cast<int>(block[0] * block[1] * block[2]);
  if (threads < 1 || threads > kMaxThreads) return "a block has 1 to 1024 threads";
  if (block[2] > 64) return "a block has at most 64 threads along z";
  if (grid[1] > 65535 || grid[2] > 65535) return "a grid has at most 65535 blocks along y and z";
  if (shared > kSharedMost) return "more than 227 KiB of dynamic shared memory";
  kernel = entry;
  words = parameters;
  dynamic_bytes = shared;
  random_state = seed;
  for (int i = 0; i < threads; ++i) {
    State* state = state_of(i);
    const unsigned u = static_cast<unsigned>(i);
    state->fibre.linear = u;
    state->fibre.thread = {u % block[0], u / block[0] % block[1], u / (block[0] * block[1])};
  }
  std::vector<int> sequence(threads);
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) {
        emu_block_index = {x, y, z};
        run_block(order, sequence);
        if (message[0]) {
          forget_fibres();
          return message;
        }
      }
  return nullptr;
}

// Marks memory as out of bounds, or in bounds again, where a sanitizer looks.
void emu_poison(void* p, size_t nbytes, int poisoned) {
#ifdef EMU_SANITIZED
  if (poisoned) {
    __asan_poison_memory_region(p, nbytes);
  } else {
    __asan_unpoison_memory_region(p, nbytes);
  }
#endif
  (void)p, (void)nbytes, (void)poisoned;
}
}

}  // namespace emu
