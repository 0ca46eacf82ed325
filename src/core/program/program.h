// A program: what a dry run noted (record.h), with places for all values, run without Python.
#pragma once
#include "program/record.h"
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace needle {

// Steps [first, last) that use a block.
struct Interval {
  int64_t nbytes;
  int32_t first, last;
  int64_t offset;  // in the arena; -1: it lies elsewhere, in another block, or nothing uses it
};

// What a run takes: arrays of this spec and, unless dense, these strides.
struct Source {
  Spec* spec;  // owned
  bool is_dense;
  int64_t strides[kMaxDims];
};

// What a run gives: an output, or the value that a cell holds from then on.
struct Result {
  Spec* spec;  // owned
  int32_t block;
  int32_t source;  // the cell; -1: an output
  int64_t offset;
  bool is_dense, in_place;  // in_place: may be computed in the cell's own memory
  int64_t strides[kMaxDims];
};

// All places that move together: the arena, the memory of a source or that of a result.
struct Base {
  struct User {
    int32_t pointer;
    int64_t offset;
  };
  std::vector<User> users;
  char* bound = nullptr;  // where they point now
};

class Program {
 public:
  // Takes the results' arrays in virtual memory. Throws std::bad_alloc.
  Program(std::unique_ptr<Record> record, std::vector<Source> sources, std::vector<Result> results);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Runs with memory of the sources and results. Returns the step that found a wrong input, or -1;
  // -2 with an exception set: there is no memory, or Python code in a step raised it. The GIL is
  // held on entry and exit.
  int64_t run(char* const* sources, char* const* results);
  // The same; seconds[i] grows by what step i took.
  int64_t measure(char* const* sources, char* const* results, double* seconds);

  const Record& record() const { return *record_; }
  const std::vector<Source>& sources() const { return sources_; }
  const std::vector<Result>& results() const { return results_; }
  const std::vector<Interval>& intervals() const { return intervals_; }
  int64_t arena_bytes() const { return arena_bytes_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }
  int64_t result_bytes() const;
  int64_t base_of(int32_t block) const { return base_of_[block]; }
  int32_t root_of(int32_t block) const { return root_[block]; }
  void poison() { poisons_ = true; }

 private:
  std::vector<int32_t> memories() const;
  void hoist_stores();
  int32_t find_last_check() const;
  void find_intervals();
  void share_blocks();
  int32_t dying_input(int32_t step) const;
  void place_blocks();
  void connect();
  void allow_in_place();
  bool fits_in_place(const Result& result, int32_t last_check) const;
  void bind(size_t base, char* address);
  void fill_dead(int32_t step, char* arena);
  int64_t run_steps(void* scratch, double* seconds);
  int64_t run_bound(char* const* sources, char* const* results, double* seconds);

  std::unique_ptr<Record> record_;
  std::vector<Source> sources_;
  std::vector<Result> results_;
  std::vector<Interval> intervals_;  // of all blocks
  std::vector<int32_t> root_;        // of all blocks: the one in whose memory it lies
  std::vector<int32_t> base_of_;     // of all blocks; 0: the arena
  std::vector<Base> bases_;          // the arena, the sources, the results
  std::vector<void*> pointers_;      // as record_->places
  int64_t arena_bytes_ = 0, workspace_bytes_ = 0;
  std::atomic<double> seconds_{0};  // of the last run
  bool poisons_ = false, calls_python_ = false;
  std::mutex lock_;
  std::atomic<std::thread::id> runner_{};  // the thread that runs it now, if it calls Python
};

}  // namespace needle
