// The part of a device behind a driver that every operation needs: blocks of memory that are free
// again, and launches. backend/cuda has the rest, and handles all calls that return None here.
#pragma once
#include <cstring>

#include "types/core.h"

namespace needle {

struct Port;
struct Block;

// Blocks of one size and stream that nobody holds.
struct Shelf {
  int64_t size, stream;
  Block* first;
  Shelf* next;  // in the table
};

struct Block {
  PyObject_HEAD Port* port;
  PyObject *piece, *events;  // events: null until somebody asks
  PyObject* weaklist;
  uint64_t address;
  int64_t nbytes, stream;
  Shelf* shelf;
  Block* next;  // on the shelf
};

// The driver's call for it (cuda.h: cuLaunchKernel).
using LaunchCall = int (*)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                           unsigned by, unsigned bz, unsigned shared, void* stream, void** params,
                           void** extra);
constexpr int kShelves = 256;

// A kernel's parameters, in words of 8 bytes.
struct Words {
  static constexpr size_t kRoom = 4096;
  size_t n = 0;
  char bytes[kRoom];
  Words() {}  // the bytes are not set
  Words(const Words& other) { *this = other; }
  Words& operator=(const Words& other) {
    std::memcpy(bytes, other.bytes, n = other.n);
    return *this;
  }
  bool add(const void* source, size_t nbytes) {
    if (n + nbytes > kRoom) {
      PyErr_SetString(PyExc_ValueError, "a kernel's parameters take at most 4096 bytes");
      return false;
    }
    std::memcpy(bytes + n, source, nbytes);
    n += nbytes;
    return true;
  }
};

struct Kernel {
  PyObject* function;  // as the driver loaded it
  void* handle;        // of the driver's call
  unsigned grid[3], block[3], shared;
};

struct Port {
  PyObject_HEAD PyObject *driver, *streams, *dropped, *address, *limitless;
  int64_t main, guard, live, peak, token;
  LaunchCall call;  // null: ask the driver
  Shelf* shelves[kShelves];
  bool several, waiting;
  uint32_t lent;
  int64_t launches;  // number of launches by Python
  Kernel kernel;     // the last of them, owned
  Words last;        // its parameters
};

// A kernel with its grid and all parameters but the first, which are addresses of arrays.
struct Launch {
  PyObject_VAR_HEAD Port* port;
  Kernel kernel;  // owned
  char tail[1];
};

extern PyTypeObject *block_type, *launch_type;

// A block of at least so many bytes for this thread's stream, a new reference; null without an
// exception: not here.
PyObject* lend(Port* port, int64_t nbytes);
// Where an array begins, once this thread's stream may use it. False without an exception: it is
// not in memory of this device, or not on a boundary of 16 bytes.
bool place_of(Port* port, const Array* x, uint64_t* place);
bool run_launch(const Launch* launch, const uint64_t* places, int n);  // false: an exception is set

}  // namespace needle
