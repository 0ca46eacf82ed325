// Loop nests over views: axes of one operand (x) or of two that are walked together (x and out).
#pragma once
#include <atomic>
#include <initializer_list>
#include <type_traits>

#include "base/threads.h"

namespace needle::NEEDLE_ISA {

struct Axis {
  int64_t size, x, out;  // strides in elements
};

struct Offsets {
  int64_t x, out;
};

struct Axes {
  int count = 0;
  Axis axis[kMaxDims];

  void add(int64_t size, int64_t x, int64_t out) { axis[count++] = {size, x, out}; }

  int64_t total() const {
    int64_t product = 1;
    for (int i = 0; i < count; ++i) product *= axis[i].size;
    return product;
  }

  // Where element `position` (last axis fastest) lies.
  Offsets at(int64_t position) const {
    Offsets offsets = {0, 0};
    for (int i = count - 1; i >= 0; --i) {
      const int64_t index = i ? position % axis[i].size : position;
      position = i ? position / axis[i].size : 0;
      offsets.x += index * axis[i].x;
      offsets.out += index * axis[i].out;
    }
    return offsets;
  }

  // Drops axes of size 1 and joins neighbours that step like one axis.
  void merge() {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      if (axis[i].size == 1) continue;
      Axis* last = kept ? &axis[kept - 1] : nullptr;
      if (last && last->x == axis[i].size * axis[i].x && last->out == axis[i].size * axis[i].out) {
        *last = {last->size * axis[i].size, axis[i].x, axis[i].out};
      } else {
        axis[kept++] = axis[i];
      }
    }
    count = kept;
  }

  // The shortest step of x last: then memory is walked in order.
  void sort() {
    for (int i = 1; i < count; ++i) {
      for (int j = i; j > 0 && step(axis[j - 1]) < step(axis[j]); --j) {
        const Axis other = axis[j];
        axis[j] = axis[j - 1];
        axis[j - 1] = other;
      }
    }
  }

  Axis pop() { return count ? axis[--count] : Axis{1, 0, 0}; }

 private:
  // A broadcast axis (stride 0) belongs outside: inside, it would keep x from being contiguous.
  static int64_t step(const Axis& a) { return a.x == 0 ? INT64_MAX : a.x < 0 ? -a.x : a.x; }
};

inline int64_t element_count(const Operand& x) {
  int64_t product = 1;
  for (int i = 0; i < x.ndim; ++i) product *= x.shape[i];
  return product;
}

inline bool is_dense(const Operand& x) {
  int64_t stride = 1;
  if (element_count(x) == 0) return true;
  for (int i = x.ndim - 1; i >= 0; --i) {
    if (x.shape[i] != 1 && x.strides[i] != stride) return false;
    stride *= x.shape[i];
  }
  return true;
}

template <class T>
inline const T* as(const void* p) {
  return static_cast<const T*>(p);
}
template <class T>
inline T* as(void* p) {
  return static_cast<T*>(p);
}

inline const void* byte_offset(const void* p, int64_t bytes) { return as<char>(p) + bytes; }
inline void* byte_offset(void* p, int64_t bytes) { return as<char>(p) + bytes; }

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }
inline int64_t round_up(int64_t n, int64_t unit) { return parts(n, unit) * unit; }

struct Interval {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Of numbers that are not negative. INT64_MAX if it is more: no memory bounds the sizes of a view
// that repeats an element, so that their work, and what a kernel wants to keep of it, may be.
inline int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result)) result = INT64_MAX;
  return result;
}

// Keeps a kernel's own description in the plan's bytes.
template <class State>
State& state_of(Plan* plan) {
  static_assert(sizeof(State) <= kPlanBytes && alignof(State) <= 16 &&
                std::is_trivially_copyable_v<State>);
  return *reinterpret_cast<State*>(plan->state);
}
template <class State>
const State& state_of(const Plan* plan) {
  return *reinterpret_cast<const State*>(plan->state);
}

// How many threads should share so many tasks of so much work (in elements) altogether. Chosen when
// planning, because the workspace depends on it.
inline int team_size(int64_t tasks, int64_t work) {
  if (tasks < 2 || work < kSerial) return 1;
  return static_cast<int>(tasks < threads() ? tasks : threads());
}

// body(task, thread) for all tasks.
template <class Body>
inline void run_tasks(int team, int64_t tasks, const Body& body) {
  if (team <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  if (tasks == team) return parallel(team, [&](int thread) { body(thread, thread); });
  std::atomic<int64_t> next{0};
  parallel(team, [&](int thread) {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
      body(task, thread);
  });
}

}  // namespace needle::NEEDLE_ISA
