// The part of CUDA C++ that kernels/*.cu use, for a host compiler.
//
// Each CUDA thread is a fibre (runtime.cc). A block's fibres run on one thread of the host, one
// after another, and change only where they wait: at barriers, and in operations of a warp. The
// memory model is simple: writes are visible at once, and blocks do not overlap.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __align__(n) alignas(n)
#define __launch_bounds__(...)

namespace emu {

struct Dim3 {
  unsigned x, y, z;
};

struct Fibre {
  Dim3 thread;
  unsigned linear;  // number within the block
  void* state;      // the scheduler's
};

extern "C" {
extern Fibre* emu_fibre;  // the one that runs
extern Dim3 emu_block_index, emu_block_size, emu_grid_size;
void emu_block_barrier(const char* file, int line);
void emu_warp_barrier(unsigned mask, const char* file, int line);
// Gives `value` (at most 8 bytes) to the warp and returns that of another lane; see shuffle().
uint64_t emu_exchange(unsigned mask, uint64_t value, int from, const char* file, int line);
unsigned emu_ballot(unsigned mask, int predicate, const char* file, int line);
// When all lanes of the warp have arrived, combines their values once.
void emu_together(void* own, void (*work)(void* const* lanes), const char* file, int line);
// Copies of this thread to shared memory, zeros from null; made in groups, when waited for.
void emu_copy_later(void* to, const void* from, size_t nbytes);
void emu_end_copies();
void emu_wait_for_copies(size_t groups_left);
void emu_shared(void* variable, size_t nbytes, uint64_t* block, const char* file, int line);
void* emu_dynamic_shared();
void emu_fail(const char* what, const char* file, int line);
}

// Calls a kernel with its parameters out of 8-byte words.
template <class T>
T take(const unsigned char*& words) {
  static_assert(sizeof(T) % 8 == 0, "parameters of kernels are 8 bytes wide");
  T value;
  std::memcpy(&value, words, sizeof value);
  words += sizeof value;
  return value;
}
template <class... A>
void call(void (*kernel)(A...), const unsigned char* words) {
  struct Run {
    Run(void (*run)(A...), A... a) { run(a...); }
  };
  Run{kernel, take<A>(words)...};  // braces evaluate from left to right
}

template <class T>
T shuffle(unsigned mask, T value, int from, const char* file, int line) {
  static_assert(sizeof(T) <= 8, "");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = emu_exchange(mask, bits, from, file, line);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int lane() { return static_cast<int>(emu_fibre->linear % 32); }

}  // namespace emu

#define threadIdx (::emu::emu_fibre->thread)
#define blockIdx (::emu::emu_block_index)
#define blockDim (::emu::emu_block_size)
#define gridDim (::emu::emu_grid_size)

#define SHARED(type, name, ...)              \
  alignas(128) static type name __VA_ARGS__; \
  static uint64_t name##_block;              \
  ::emu::emu_shared(&name, sizeof(name), &name##_block, __FILE__, __LINE__)
#define DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(::emu::emu_dynamic_shared())

#define EMU_WHERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMU_WHERE) { ::emu::emu_block_barrier(file, line); }
inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_WHERE) {
  ::emu::emu_warp_barrier(mask, file, line);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, EMU_WHERE) {
  const int first = ::emu::lane() & ~(width - 1);
  return ::emu::shuffle(mask, value, first + (from & (width - 1)), file, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMU_WHERE) {
  const int self = ::emu::lane(), from = self ^ bits;
  return ::emu::shuffle(mask, value, from / width > self / width ? self : from, file, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, EMU_WHERE) {
  const int self = ::emu::lane(), from = self + static_cast<int>(by);
  return ::emu::shuffle(mask, value, from / width == self / width ? from : self, file, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMU_WHERE) {
  const int self = ::emu::lane(), from = self - static_cast<int>(by);
  const bool inside = from >= (self & ~(width - 1));
  return ::emu::shuffle(mask, value, inside ? from : self, file, line);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_WHERE) {
  return ::emu::emu_ballot(mask, predicate, file, line);
}

// One thread of the host runs: plain reads and writes are atomic.
template <class T>
T atomicMin(T* p, T value) {
  T old = *p;
  *p = value < old ? value : old;
  return old;
}

template <class To, class From>
inline To emu_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  std::memcpy(&to, &x, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float x) { return emu_bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
inline long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<uint64_t>(x) * y >> 32);
}
using std::isinf;
using std::isnan;
