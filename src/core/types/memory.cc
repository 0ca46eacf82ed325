// Storage: a header and 64-byte aligned data in one block. Freed blocks wait in lists by size
// class (four per power of two) and are handed out again, warm and without a page fault; a
// training loop asks for the same sizes in every step. Large blocks lie on huge pages where the
// system has them.
#include "types/core.h"
#include "program/record.h"
#include <sys/mman.h>
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace needle {
namespace {

constexpr int64_t kHeader = 64;
constexpr int64_t kPage = 4096;
constexpr int64_t kHuge = int64_t{2} << 20;
constexpr int kClasses = 256;
constexpr int64_t kLargest = int64_t{1} << 56;  // no machine has more; sums of it stay in range
static_assert(sizeof(Storage) <= kHeader);

Storage* free_lists[kClasses];
int64_t live_bytes, cached_bytes, peak_bytes, live_blocks, first_limit;
thread_local int64_t limit_bytes = first_limit;  // this thread's limit of memory in use
std::atomic<int64_t> scratch_bytes;  // of all threads' workspaces; a dying thread holds no GIL
PyObject* explain_exhausted;         // (bytes asked for) -> the exception, in Python

// Sizes 64, 80, 96, 112, 128, 160, ...: the class of n and the largest size in it.
int size_class(int64_t n, int64_t* size) {
  n = std::max<int64_t>(n, 64);
  int shift = 63 - __builtin_clzll(static_cast<uint64_t>(n - 1) | 1);  // 2^shift < n
  if (n <= 64) shift = 5;
  const int64_t step = int64_t{1} << (shift - 2);
  const int64_t base = int64_t{1} << shift;
  const int64_t quarter = (n - base + step - 1) / step;
  *size = base + quarter * step;
  return (shift - 5) * 4 + static_cast<int>(quarter);
}

void* system_allocate(int64_t nbytes) {
  // On pages: a load waits for an earlier store to an address with the same last 12 bits, which
  // must not be what loops that read one block and write another do all the time.
  const int64_t align = nbytes < 4 * kPage ? 64 : kPage;
  if (nbytes < kHuge) return std::aligned_alloc(align, (nbytes + align - 1) / align * align);
  void* block = std::aligned_alloc(kHuge, (nbytes + kHuge - 1) / kHuge * kHuge);
#if defined(MADV_HUGEPAGE)
  if (block) madvise(block, (nbytes + kHuge - 1) / kHuge * kHuge, MADV_HUGEPAGE);
#endif
  return block;
}

// Give cached blocks back, largest first, until at most `keep` bytes are cached.
void trim(int64_t keep) {
  for (int i = kClasses - 1; i >= 0 && cached_bytes > keep; i--) {
    while (free_lists[i] && cached_bytes > keep) {
      Storage* block = free_lists[i];
      free_lists[i] = block->next;
      cached_bytes -= block->capacity;
      std::free(block);
    }
  }
}

// Memory from the system, after giving back cached memory if needed; null if the limit or the
// system refuses.
void* obtain(int64_t nbytes) {
  if (limit_bytes) {
    const int64_t room = limit_bytes - live_bytes - scratch_bytes - nbytes;
    if (cached_bytes > room) trim(std::max<int64_t>(room, 0));
    if (room < 0) return nullptr;
  }
  void* block = system_allocate(nbytes);
  if (!block && cached_bytes) {
    trim(0);
    block = system_allocate(nbytes);
  }
  return block;
}

Storage* fresh_block(int64_t capacity) {
  // Sizes that no longer occur must not pile up beside those that do.
  if (cached_bytes > live_bytes + 64 * kHuge) trim(live_bytes);
  return static_cast<Storage*>(obtain(capacity + kHeader));
}

void set_exhausted(int64_t nbytes) {
  PyObject* size = explain_exhausted ? PyLong_FromLongLong(nbytes) : nullptr;
  PyObject* error = size ? PyObject_CallOneArg(explain_exhausted, size) : nullptr;
  Py_XDECREF(size);
  if (error) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
    Py_DECREF(error);
  } else if (!PyErr_Occurred()) {
    PyErr_NoMemory();
  }
}

}  // namespace

Storage* storage_new(int64_t nbytes) {
  if (is_dry() && nbytes <= kLargest) return virtual_new(nbytes);
  if (nbytes > kLargest) {
    set_exhausted(nbytes);
    return nullptr;
  }
  int64_t capacity;
  const int index = size_class(nbytes, &capacity);
  Storage* storage = free_lists[index];
  if (storage) {
    free_lists[index] = storage->next;
    cached_bytes -= capacity;
  } else if (!(storage = fresh_block(capacity))) {
    set_exhausted(nbytes);
    return nullptr;
  }
  *storage = {1, reinterpret_cast<char*>(storage) + kHeader, nbytes, capacity, nullptr, nullptr};
  live_bytes += capacity;
  live_blocks++;
  peak_bytes = std::max(peak_bytes, live_bytes);
  return storage;
}

Storage* storage_adopt(PyObject* buffer) {
  auto* view = new (std::nothrow) Py_buffer{};
  auto* storage = view ? new (std::nothrow) Storage{1, nullptr, 0, 0, view, nullptr} : nullptr;
  if (!storage) {
    PyErr_NoMemory();
  } else if (PyObject_GetBuffer(buffer, view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) {
    PyErr_Clear();
    PyObject_GetBuffer(buffer, view, PyBUF_C_CONTIGUOUS);
  }
  if (!storage || PyErr_Occurred()) {
    delete view;
    delete storage;
    return nullptr;
  }
  storage->data = view->buf;
  storage->nbytes = view->len;
  return storage;
}

void storage_free(Storage* storage) {
  if (is_virtual(storage)) return virtual_free(storage);
  if (storage->owner) {
    PyBuffer_Release(storage->owner);
    delete storage->owner;
    delete storage;
    return;
  }
  live_bytes -= storage->capacity;
  live_blocks--;
#if defined(NEEDLE_SANITIZE)
  std::free(storage);  // a cache would hide a use after free
#else
  int64_t size;
  const int index = size_class(storage->capacity, &size);
  storage->next = free_lists[index];
  free_lists[index] = storage;
  cached_bytes += storage->capacity;
#endif
}

MemoryInfo memory_info() {
  return {live_bytes, cached_bytes, scratch_bytes, peak_bytes, live_blocks, limit_bytes};
}

int64_t memory_limit() { return limit_bytes; }

void start_memory_limit(int64_t nbytes) { limit_bytes = first_limit = nbytes; }

void set_memory_limit(int64_t nbytes) {
  limit_bytes = nbytes;
  if (nbytes) trim(std::max<int64_t>(0, nbytes - live_bytes - scratch_bytes));
}

void set_exhausted_hook(PyObject* function) {
  Py_INCREF(function);
  Py_XSETREF(explain_exhausted, function);
}

namespace {

// Memory of a thread that only grows.
struct Scratch {
  void* data = nullptr;
  int64_t size = 0;
  ~Scratch() { give_back(); }
  void give_back() {
    std::free(data);
    scratch_bytes -= size;
    data = nullptr;
    size = 0;
  }
  void* at_least(int64_t nbytes) {
    if (nbytes <= size) return data;
    give_back();
    data = nbytes > kLargest ? nullptr : obtain(nbytes);
    if (data) {
      scratch_bytes += size = nbytes;
    } else {
      set_exhausted(nbytes);
    }
    return data;
  }
};

}  // namespace

void* workspace(int64_t nbytes) {
  thread_local Scratch scratch;
  return scratch.at_least(nbytes);
}

void* arena(int64_t nbytes) {
  thread_local Scratch scratch;
  return scratch.at_least(nbytes);
}

}  // namespace needle
