// Programs: where each value lies, and how they run.
//
// Values live from the first step that uses them to the last. The largest are placed first, each
// as low in the arena as those allow that live at the same time. Sources and results have memory
// of their own, which is another one at each run.
#include "program/program.h"
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

namespace needle {
namespace {

constexpr int64_t kLine = 64, kPage = 4096;
constexpr double kShort = 20e-6;  // seconds that other threads may have to wait

double now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// As in memory.cc: large blocks begin on pages.
int64_t alignment(int64_t nbytes) { return nbytes < 4 * kPage ? kLine : kPage; }

// Memory of a run: the thread's, unless Python code within it may use that, too. Under the GIL.
class Lent {
 public:
  Lent(int64_t nbytes, void* (*shared)(int64_t), bool is_own) {
    if (is_own) storage_ = nbytes ? storage_new(nbytes) : nullptr;
    data_ = is_own ? (storage_ ? storage_->data : nullptr) : nbytes ? shared(nbytes) : nullptr;
    is_there_ = data_ || !nbytes;
  }
  ~Lent() { storage_release(storage_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  void* data() const { return data_; }
  bool is_there() const { return is_there_; }

 private:
  Storage* storage_ = nullptr;
  void* data_;
  bool is_there_;
};

}  // namespace

Program::Program(std::unique_ptr<Record> record, std::vector<Source> sources,
                 std::vector<Result> results)
    : record_(std::move(record)), sources_(std::move(sources)), results_(std::move(results)) {
  base_of_.assign(record_->blocks.size(), 0);
  for (size_t i = 0; i < record_->blocks.size(); i++) {
    if (record_->blocks[i].source >= 0) base_of_[i] = 1 + record_->blocks[i].source;
  }
  for (size_t k = 0; k < results_.size(); k++) {
    base_of_[results_[k].block] = static_cast<int32_t>(1 + sources_.size() + k);
  }
  hoist_stores();
  find_intervals();
  share_blocks();
  place_blocks();
  connect();
  allow_in_place();
  for (const Step& step : record_->steps) {
    workspace_bytes_ = std::max(workspace_bytes_, step.plan->workspace);
    calls_python_ |= (step.traits & kOnHost) != 0;
  }
}

Program::~Program() {
  for (const Source& source : sources_) Py_DECREF(source.spec);
  for (const Result& result : results_) Py_DECREF(result.spec);
}

// What an order of steps must keep: who touches the same memory, here a number, stays in order.
// A cell and its new value are one memory. Sources that no cell is written over have none: -1.
std::vector<int32_t> Program::memories() const {
  const size_t n = record_->blocks.size();
  std::vector<int32_t> found(n), cell(sources_.size(), -1);
  std::iota(found.begin(), found.end(), 0);
  for (const Result& result : results_) {
    if (result.source >= 0) cell[result.source] = result.block;
  }
  for (size_t i = 0; i < n; i++) {
    if (record_->blocks[i].source >= 0) found[i] = cell[record_->blocks[i].source];
  }
  return found;
}

// Steps that only finish results, updates of parameters above all, come as early as they can: the
// gradients that they read are dead then. New values of cells wait for the last step that can fail.
void Program::hoist_stores() {
  auto& steps = record_->steps;
  const std::vector<int32_t> memory = memories();
  const int32_t last_check = find_last_check();
  std::vector<int32_t> touched(record_->blocks.size(), -1);  // when a memory was, the last time
  std::vector<int32_t> when(steps.size());
  for (int32_t i = 0; i < static_cast<int32_t>(steps.size()); i++) {
    const auto begin = record_->places.begin() + steps[i].first, end = begin + steps[i].n;
    bool gives = false, makes = steps[i].traits & kChecked;
    int32_t ready = -1;
    for (auto place = begin; place != end; ++place) {
      if (place->block < 0 || memory[place->block] < 0) continue;
      const bool is_value = base_of_[place->block] == 0;
      gives |= base_of_[place->block] > static_cast<int32_t>(sources_.size());
      makes |= is_value && touched[place->block] < 0;
      ready = std::max(ready, touched[memory[place->block]]);
    }
    when[i] = gives && !makes ? std::min(i, std::max(ready, last_check)) : i;
    for (auto place = begin; place != end; ++place) {
      if (place->block >= 0 && memory[place->block] >= 0) touched[memory[place->block]] = when[i];
    }
  }
  std::vector<int32_t> order(steps.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return when[a] < when[b]; });
  std::vector<Step> sorted;
  for (const int32_t i : order) sorted.push_back(steps[i]);
  steps.swap(sorted);
}

int32_t Program::find_last_check() const {
  int32_t last = -1;
  for (size_t i = 0; i < record_->steps.size(); i++) {
    if (record_->steps[i].traits & kChecked) last = static_cast<int32_t>(i);
  }
  return last;
}

void Program::find_intervals() {
  for (const VirtualBlock& block : record_->blocks) {
    intervals_.push_back({block.nbytes, INT32_MAX, 0, -1});
  }
  for (size_t i = 0; i < record_->steps.size(); i++) {
    const Step& step = record_->steps[i];
    for (int32_t k = step.first; k < step.first + step.n; k++) {
      const int32_t block = record_->places[k].block;
      if (block < 0) continue;
      Interval& interval = intervals_[block];
      interval.first = std::min(interval.first, static_cast<int32_t>(i));
      interval.last = static_cast<int32_t>(i) + 1;
    }
  }
}

// An input in the arena that is as large as the result and that no later step reads; -1: none.
int32_t Program::dying_input(int32_t i) const {
  const Step& step = record_->steps[i];
  const auto places = record_->places.begin() + step.first;
  for (int32_t k = 1; k < step.n; k++) {
    const int32_t block = places[k].block;
    if (block < 0 || block == places[0].block || base_of_[block] != 0) continue;
    if (intervals_[root_[block]].last != i + 1) continue;
    if (record_->blocks[block].nbytes != record_->blocks[places[0].block].nbytes) continue;
    const bool whole = std::all_of(places, places + step.n, [&](const Place& place) {
      return place.block != block || place.offset == 0;
    });
    if (whole) return block;
  }
  return -1;
}

// Lets results lie where an input of their step did, if the kernel allows for it.
void Program::share_blocks() {
  root_.resize(intervals_.size());
  std::iota(root_.begin(), root_.end(), 0);
  for (int32_t i = 0; i < static_cast<int32_t>(record_->steps.size()); i++) {
    const Step& step = record_->steps[i];
    if (!(step.traits & kSameView) || step.n == 0) continue;
    const Place& result = record_->places[step.first];
    if (result.block < 0 || base_of_[result.block] != 0 || result.offset) continue;
    if (intervals_[result.block].first != i) continue;
    const int32_t input = dying_input(i);
    if (input < 0) continue;
    root_[result.block] = root_[input];
    intervals_[root_[input]].last = intervals_[result.block].last;
  }
}

void Program::place_blocks() {
  std::vector<int32_t> order;
  for (size_t i = 0; i < intervals_.size(); i++) {
    const bool is_placed = base_of_[i] == 0 && root_[i] == static_cast<int32_t>(i);
    if (is_placed && intervals_[i].last > 0) order.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return intervals_[a].nbytes > intervals_[b].nbytes;
  });
  std::vector<std::pair<int64_t, int64_t>> taken;  // from, to
  for (size_t n = 0; n < order.size(); n++) {
    Interval& own = intervals_[order[n]];
    taken.clear();
    for (size_t k = 0; k < n; k++) {
      const Interval& other = intervals_[order[k]];
      if (other.first < own.last && own.first < other.last) {
        taken.emplace_back(other.offset, other.offset + std::max<int64_t>(other.nbytes, 1));
      }
    }
    std::sort(taken.begin(), taken.end());
    int64_t offset = 0;
    for (const auto& [from, to] : taken) {
      if (from - offset >= own.nbytes) break;
      offset = std::max(offset, rounded(to, alignment(own.nbytes)));
    }
    own.offset = offset;
    arena_bytes_ =
        std::max(arena_bytes_, rounded(offset + std::max<int64_t>(own.nbytes, 1), kLine));
  }
}

// Notes which pointers follow which base; those to constants never move.
void Program::connect() {
  bases_.resize(1 + sources_.size() + results_.size());
  pointers_.resize(record_->places.size());
  for (size_t i = 0; i < pointers_.size(); i++) {
    const auto& [block, offset] = record_->places[i];
    if (block < 0) {
      pointers_[i] = reinterpret_cast<void*>(offset);
      continue;
    }
    const int64_t start = base_of_[block] == 0 ? intervals_[root_[block]].offset : 0;
    bases_[base_of_[block]].users.push_back({static_cast<int32_t>(i), start + offset});
  }
}

void Program::allow_in_place() {
  const int32_t last_check = find_last_check();
  for (Result& result : results_) result.in_place = fits_in_place(result, last_check);
}

// Whether a new value may be written over the old one: every step that can fail, and every step
// that reads the old value, comes before, but for one that allows for it.
bool Program::fits_in_place(const Result& result, int32_t last_check) const {
  if (result.source < 0 || !result.is_dense || result.offset) return false;
  const auto& blocks = record_->blocks;
  const Source& source = sources_[result.source];
  if (result.spec != source.spec || !source.is_dense) return false;
  const int32_t first = intervals_[result.block].first;
  if (intervals_[result.block].last == 0 || first <= last_check) return false;
  for (size_t i = 0; i < blocks.size(); i++) {
    if (blocks[i].source != result.source || intervals_[i].last <= first) continue;
    if (intervals_[i].last > first + 1 || !(record_->steps[first].traits & kSameView)) return false;
    const Step& step = record_->steps[first];
    for (int32_t k = step.first; k < step.first + step.n; k++) {
      const Place& place = record_->places[k];
      const bool ours = place.block == static_cast<int32_t>(i) || place.block == result.block;
      if (ours && place.offset) return false;
    }
  }
  return true;
}

int64_t Program::result_bytes() const {
  int64_t total = 0;
  for (const Result& result : results_) {
    if (!result.in_place) total += record_->blocks[result.block].nbytes;
  }
  return total;
}

void Program::bind(size_t base, char* address) {
  Base& own = bases_[base];
  if (own.bound == address) return;
  for (const Base::User& user : own.users) pointers_[user.pointer] = address + user.offset;
  own.bound = address;
}

// Overwrites values that no later step may use.
void Program::fill_dead(int32_t step, char* arena) {
  for (const Interval& interval : intervals_) {
    if (interval.offset < 0 || interval.last != step + 1) continue;
    std::memset(arena + interval.offset, 0xff, static_cast<size_t>(interval.nbytes));
  }
}

int64_t Program::run_steps(void* scratch, double* seconds) {
  const auto& steps = record_->steps;
  double before = seconds ? now() : 0;
  for (size_t i = 0; i < steps.size(); i++) {
    const Step& step = steps[i];
    void* const* buffers = pointers_.data() + step.first;
    const bool is_done = step.traits & kCopies && buffers[0] == buffers[1];
    if (!is_done && step.plan->run(step.plan, buffers, scratch) >= 0 && step.traits & kChecked) {
      return static_cast<int64_t>(i);
    }
    if (poisons_) fill_dead(static_cast<int32_t>(i), bases_[0].bound);
    if (!seconds) continue;
    const double after = now();
    seconds[i] += after - before;
    before = after;
  }
  return -1;
}

int64_t Program::run_bound(char* const* sources, char* const* results, double* seconds) {
  const auto self = std::this_thread::get_id();
  if (calls_python_ && runner_ == self) return 0;  // by Python code within: by the definition then
  const Lent scratch(workspace_bytes_, workspace, calls_python_);
  const Lent values(arena_bytes_, arena, calls_python_);
  if (!scratch.is_there() || !values.is_there()) return -2;
  auto* memory = static_cast<char*>(values.data());
  const auto locked_run = [&]() -> int64_t {
    if (calls_python_) runner_ = self;
    bind(0, memory);
    for (size_t i = 0; i < sources_.size(); i++) bind(1 + i, sources[i]);
    for (size_t i = 0; i < results_.size(); i++) bind(1 + sources_.size() + i, results[i]);
    if (poisons_ && memory) std::memset(memory, 0xff, static_cast<size_t>(arena_bytes_));
    const double before = now();
    const int64_t failed = run_steps(scratch.data(), seconds);
    seconds_ = now() - before;
    if (calls_python_) runner_ = std::thread::id();
    return failed >= 0 && record_->steps[failed].traits & kOnHost ? -2 : failed;
  };
  if (seconds_ < kShort && lock_.try_lock()) {  // nobody waits for the GIL in there
    const std::lock_guard<std::mutex> guard(lock_, std::adopt_lock);
    return locked_run();
  }
  const Released released;
  const std::lock_guard<std::mutex> guard(lock_);
  return locked_run();
}

int64_t Program::run(char* const* sources, char* const* results) {
  return run_bound(sources, results, nullptr);
}

int64_t Program::measure(char* const* sources, char* const* results, double* seconds) {
  return run_bound(sources, results, seconds);
}

}  // namespace needle
