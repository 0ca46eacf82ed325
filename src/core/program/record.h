// Dry runs: while a thread records, ops plan their kernels as ever, but memory is virtual and
// kernels are noted instead of run. What was noted is a program (program.h).
//
// A virtual block is an address that nobody else has, in a range that is reserved and never used,
// so views, slices and strides need no bookkeeping: the address of a buffer finds its block again.
// Its values do not exist; who asks for them gets NotRecorded.
#pragma once
#include "types/core.h"
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace needle {

// A buffer of a kernel: an offset in bytes into a block, or (block -1) an address.
struct Place {
  int32_t block;
  int64_t offset;
};

enum Traits : int32_t {
  kChecked = 1,   // a result >= 0 says that an input is wrong
  kSameView = 2,  // the first buffer may be the same view as another one
  kCopies = 4,    // dense copy of one array: nothing to do where both are in one place
  kOnHost = 8,    // runs Python; a result >= 0 says that there is an exception
};

// One run of a kernel.
struct Step {
  const Plan* plan;
  int32_t first, n;  // its buffers: places[first .. first + n)
  int32_t node;      // whose computation it is part of: position in the listing
  int32_t traits;
  const char* name;  // of what is no kernel of the table; may be null
};

struct VirtualBlock {
  int64_t begin;  // in the range
  int64_t nbytes;
  int32_t source;   // which argument or cell it stands for; -1: none
  bool is_written;  // with values known from now on
};

// What Python code computes in a step (host.cc).
struct HostStep {
  struct Operand {
    Spec* spec;  // owned
    bool is_dense;
    int64_t strides[kMaxDims];
  };
  PyObject* function = nullptr;  // owned: of arrays; it returns a sequence of arrays
  std::vector<Operand> inputs;
  std::vector<Spec*> results;  // owned
  HostStep() = default;
  HostStep(const HostStep&) = delete;
  HostStep& operator=(const HostStep&) = delete;
  ~HostStep();
};

// What a dry run notes.
struct Record {
  std::deque<Plan> plans;
  std::vector<Step> steps;
  std::vector<Place> places;
  std::vector<VirtualBlock> blocks;
  std::vector<Storage*> constants;               // real memory that steps read; owned
  std::deque<std::unique_ptr<char[]>> tables;    // values that were written while recording
  std::deque<std::unique_ptr<int64_t[]>> sizes;  // of the tensors of an update
  std::deque<HostStep> hosts;
  Record() = default;
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;
  ~Record() {
    for (Storage* storage : constants) storage_release(storage);
  }
};

struct Recorder {
  std::unique_ptr<Record> record = std::make_unique<Record>();
  char* region = nullptr;
  int64_t reserved = 0, used = 0, live = 0;  // live: blocks that objects hold
  int32_t node = -1;
  bool is_over = false;  // then it waits for the last of these objects
  ~Recorder();
};

extern int32_t recorders;            // how many threads record
extern __thread Recorder* recorder;  // of this thread; null: it computes
inline bool is_dry() { return __builtin_expect(recorders != 0, 0) && recorder; }

// Memory is real while it lives: for what outlasts the dry run, as constants that are kept.
class Wet {
 public:
  Wet() : held_(recorders ? std::exchange(recorder, nullptr) : nullptr) {}
  ~Wet() {
    if (held_) recorder = held_;
  }
  Wet(const Wet&) = delete;
  Wet& operator=(const Wet&) = delete;

 private:
  Recorder* held_;
};

inline bool is_virtual(const Storage* storage) { return storage->capacity < 0; }
Storage* virtual_new(int64_t nbytes);  // null with an exception, as storage_new
void virtual_free(Storage* storage);
// Notes a kernel instead of running it; false with an exception.
bool note(const Plan& plan, void* const* buffers, int64_t n, int32_t traits, const char* name);
// Notes that values known now are written to dense virtual memory; false with an exception.
bool note_values(const Array* out, const void* values, int64_t nbytes);
// Notes a step that calls a function of Python, in place of what the node noted so far; false with
// an exception.
bool note_host(PyObject* function, const std::vector<Array*>& inputs,
               const std::vector<Array*>& results);
// Raises NotRecorded, if the memory is virtual.
bool has_values(const Storage* storage);
// A copy that the record keeps, for a buffer of a kernel; null with an exception.
void* table_of(const void* values, int64_t nbytes);
bool is_known(const Array* x);  // whether its values are, though it may be virtual
void raise_not_recorded(const char* why);

}  // namespace needle
