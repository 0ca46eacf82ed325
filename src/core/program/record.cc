// What a thread does while it records: virtual memory, and notes of kernels.
#include "program/record.h"
#include <sys/mman.h>
#include <algorithm>
#include <cstring>
#include <new>

namespace needle {

int32_t recorders = 0;
__thread Recorder* recorder = nullptr;

namespace {

constexpr int64_t kMost = int64_t{1} << 40, kLeast = int64_t{1} << 30;  // bytes reserved
constexpr int64_t kLine = 64;

bool reserve(Recorder* r) {
  for (int64_t size = kMost; !r->region && size >= kLeast; size /= 4) {
    // writable, so that a write of the host touches a page of its own and does no harm
    void* range = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) continue;
    r->region = static_cast<char*>(range);
    r->reserved = size;
  }
  return r->region;
}

// The block that an address lies in; -1: none.
int32_t block_at(const Recorder* r, const char* address) {
  const int64_t at = address - r->region;
  if (!r->region || at < 0 || at >= r->used) return -1;
  const auto& blocks = r->record->blocks;
  const auto after =
      std::upper_bound(blocks.begin(), blocks.end(), at,
                       [](int64_t x, const VirtualBlock& block) { return x < block.begin; });
  return static_cast<int32_t>(after - blocks.begin()) - 1;
}

bool holds(const Storage* storage, const char* address) {
  const auto* data = static_cast<const char*>(storage->data);
  return address >= data && address <= data + storage->nbytes;
}

// Keeps the memory of a constant: some array that is alive has it.
bool keep(Record* record, const char* address) {
  for (const auto& table : record->tables) {
    if (table.get() == address) return true;
  }
  for (const Storage* storage : record->constants) {
    if (holds(storage, address)) return true;
  }
  for (const Array* x = first_array(); x; x = x->after) {
    if (Py_REFCNT(x) <= 0 || !x->storage || is_virtual(x->storage)) continue;
    if (!holds(x->storage, address)) continue;
    record->constants.push_back(x->storage);
    x->storage->refs++;
    return true;
  }
  return false;
}

bool note_place(Recorder* r, void* buffer) {
  auto* address = static_cast<char*>(buffer);
  const int32_t block = block_at(r, address);
  if (block >= 0) {
    r->record->places.push_back({block, address - r->region - r->record->blocks[block].begin});
    return true;
  }
  if (address && !keep(r->record.get(), address)) {
    raise_not_recorded("a kernel uses memory of which no array is known");
    return false;
  }
  r->record->places.push_back({-1, reinterpret_cast<int64_t>(address)});
  return true;
}

int64_t run_table(const Plan* plan, void* const* buffers, void*) {
  int64_t nbytes;
  std::memcpy(&nbytes, plan->state, sizeof nbytes);
  std::memcpy(buffers[0], buffers[1], static_cast<size_t>(nbytes));
  return -1;
}

char* add_table(Record* record, const void* values, int64_t nbytes) {
  record->tables.push_back(
      std::make_unique<char[]>(static_cast<size_t>(std::max<int64_t>(nbytes, 1))));
  char* table = record->tables.back().get();
  std::memcpy(table, values, static_cast<size_t>(nbytes));
  return table;
}

void note_table(Recorder* r, int32_t block, const void* values, int64_t nbytes) {
  Record* record = r->record.get();
  const char* table = add_table(record, values, nbytes);
  Plan plan;
  plan.run = run_table;
  plan.workspace = 0;
  std::memcpy(plan.state, &nbytes, sizeof nbytes);
  const auto first = static_cast<int32_t>(record->places.size());
  record->places.push_back({block, 0});
  record->places.push_back({-1, reinterpret_cast<int64_t>(table)});
  record->plans.push_back(plan);
  record->steps.push_back({&record->plans.back(), first, 2, r->node, 0, "values"});
  record->blocks[block].is_written = true;
}

}  // namespace

Recorder::~Recorder() {
  if (region) munmap(region, static_cast<size_t>(reserved));
}

void raise_not_recorded(const char* why) {
  PyObject* errors = PyImport_ImportModule("needle.errors");
  PyObject* error = errors ? PyObject_GetAttrString(errors, "NotRecorded") : nullptr;
  if (error) PyErr_SetString(error, why);
  Py_XDECREF(error);
  Py_XDECREF(errors);
}

bool has_values(const Storage* storage) {
  if (!is_virtual(storage)) return true;
  raise_not_recorded("values are read that no kernel has computed yet");
  return false;
}

bool is_known(const Array* x) {
  if (!is_virtual(x->storage)) return true;
  const int32_t block = recorder ? block_at(recorder, static_cast<char*>(x->storage->data)) : -1;
  return block >= 0 && recorder->record->blocks[block].is_written;
}

void* table_of(const void* values, int64_t nbytes) {
  try {
    return add_table(recorder->record.get(), values, nbytes);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return nullptr;
  }
}

Storage* virtual_new(int64_t nbytes) {
  Recorder* r = recorder;
  const int64_t room = (std::max(nbytes, kLine) + 2 * kLine - 1) / kLine * kLine;
  if (!reserve(r) || room > r->reserved - r->used) {
    raise_not_recorded("there are not enough addresses for all values");
    return nullptr;
  }
  auto* storage =
      new (std::nothrow) Storage{1,       r->region + r->used,          nbytes, -1,
                                 nullptr, reinterpret_cast<Storage*>(r)};  // it is in no list
  try {
    if (storage) r->record->blocks.push_back({r->used, nbytes, -1, false});
  } catch (const std::bad_alloc&) {
    delete storage;
    storage = nullptr;
  }
  if (!storage) {
    PyErr_NoMemory();
    return nullptr;
  }
  r->used += room;
  r->live++;
  return storage;
}

void virtual_free(Storage* storage) {
  auto* r = reinterpret_cast<Recorder*>(storage->next);
  delete storage;
  if (--r->live == 0 && r->is_over) delete r;
}

bool note(const Plan& plan, void* const* buffers, int64_t n, int32_t traits, const char* name) {
  Recorder* r = recorder;
  Record* record = r->record.get();
  try {
    const auto first = static_cast<int32_t>(record->places.size());
    for (int64_t i = 0; i < n; i++) {
      if (!note_place(r, buffers[i])) return false;
    }
    record->plans.push_back(plan);
    record->steps.push_back(
        {&record->plans.back(), first, static_cast<int32_t>(n), r->node, traits, name});
    return true;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return false;
  }
}

bool note_values(const Array* out, const void* values, int64_t nbytes) {
  const int32_t block = block_at(recorder, static_cast<char*>(out->storage->data));
  if (block < 0 || out->offset) {
    raise_not_recorded("values are written into a part of an array");
    return false;
  }
  try {
    note_table(recorder, block, values, nbytes);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return false;
  }
  std::memcpy(address(out), values, static_cast<size_t>(nbytes));  // planning may look at them
  return true;
}

}  // namespace needle
