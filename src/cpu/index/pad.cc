// Padding: rows of the result are put together of zeros, or of pieces of rows of x.
#include <cstring>

#include "base/axes.h"
#include "base/table.h"
#include "isa/lanes.h"

namespace needle::NEEDLE_ISA {
namespace {

// Elements before an axis of x, or after it: each takes that of x at `first`, first + step, ...
struct Side {
  int64_t count, first, step;
};

struct PaddedAxis {
  int64_t size, x;  // of x's axis, and its stride
  Side before, after;

  int64_t padded() const { return before.count + size + after.count; }
  bool is_padded() const { return before.count + after.count > 0; }

  // The index of x at an index of the result; negative: it is outside.
  int64_t source(int64_t i, bool zeros) const {
    const int64_t inside = i - before.count, beyond = inside - size;
    if (inside >= 0 && beyond < 0) return inside;
    if (zeros) return -1;
    return beyond < 0 ? before.first + i * before.step : after.first + beyond * after.step;
  }
};

struct State {
  int count;
  bool zeros;
  int64_t rows, chunk, block;  // a thread's rows at once, and the part in the first cache
  int team;
  PaddedAxis axis[kMaxDims];  // the last one is that of the rows
};

PaddedAxis padded_axis(int32_t mode, int64_t n, int64_t stride, int64_t before, int64_t after) {
  PaddedAxis axis = {n, stride, {before, 0, 0}, {after, n - 1, 0}};  // edges
  if (mode == kPadReflect) axis.before = {before, before, -1}, axis.after = {after, n - 2, -1};
  if (mode == kPadSymmetric)
    axis.before = {before, before - 1, -1}, axis.after = {after, n - 1, -1};
  if (mode == kPadWrap) axis.before = {before, n - before, 1}, axis.after = {after, 0, 1};
  return axis;
}

// Joins the last axis to the one before it, if that steps over all of it and nothing comes between.
void join_last(State& s) {
  while (s.count > 1) {
    PaddedAxis &last = s.axis[s.count - 1], &above = s.axis[s.count - 2];
    const bool kept = !last.is_padded() && (s.zeros || !above.is_padded());
    if (!kept || above.x != last.size * last.x) return;
    above.before.count *= last.size;
    above.after.count *= last.size;
    above.size *= last.size;
    above.after.first = above.size - 1;
    above.x = last.x;
    s.count--;
  }
}

template <class T>
void put_side(const Side& side, T* out, const T* x, int64_t stride) {
  for (int64_t i = 0; i < side.count; ++i) out[i] = x[(side.first + i * side.step) * stride];
}

// A line, which may be so short that a call of memcpy takes longer.
template <class T>
void put_line(T* out, const T* x, int64_t n, int64_t stride) {
  constexpr int64_t kWidth = kLanes<T>;
  if (stride != 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i * stride];
  } else if (n < kWidth || n > 32 * kWidth) {
    std::memcpy(static_cast<void*>(out), x, n * sizeof(T));
  } else {
    for (int64_t i = 0; i < n - kWidth; i += kWidth) store(out + i, load(x + i));
    store(out + n - kWidth, load(x + n - kWidth));
  }
}

template <class T>
void put_row(const State& s, T* out, const T* x) {
  const PaddedAxis& axis = s.axis[s.count - 1];
  T* inner = out + axis.before.count;
  put_line(inner, x, axis.size, axis.x);
  if (s.zeros) return;
  put_side(axis.before, out, x, axis.x);
  put_side(axis.after, inner + axis.size, x, axis.x);
}

// Where there are zeros, they fill as many rows as stay in the first cache first.
template <class T>
void put_rows(const State& s, T* out, const T* x, int64_t row, int64_t end) {
  const int outer = s.count - 1;
  const int64_t length = s.axis[outer].padded();
  int64_t place[kMaxDims] = {}, rest = row, filled = row;
  for (int i = outer - 1; i >= 0; rest /= s.axis[i--].padded())
    place[i] = rest % s.axis[i].padded();
  for (; row < end; ++row) {
    if (s.zeros && row == filled) {
      filled = least(row + s.block, end);
      std::memset(static_cast<void*>(out + row * length), 0, (filled - row) * length * sizeof(T));
    }
    int64_t offset = 0;
    bool inside = true;
    for (int i = 0; i < outer; ++i) {
      const int64_t source = s.axis[i].source(place[i], s.zeros);
      inside &= source >= 0;
      offset += source * s.axis[i].x;
    }
    if (inside) put_row(s, out + row * length, x + offset);
    for (int i = outer - 1; i >= 0 && ++place[i] == s.axis[i].padded(); --i) place[i] = 0;
  }
}

template <class T>
int64_t run_pad(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  run_tasks(s.team, parts(s.rows, s.chunk), [&](int64_t task, int) {
    const int64_t first = task * s.chunk;
    put_rows(s, as<T>(buffers[0]), as<T>(buffers[1]), first, least(first + s.chunk, s.rows));
  });
  return -1;
}

}  // namespace

const char* plan_pad(Plan* plan, int32_t mode, const Operand& out, const Operand& x,
                     const int64_t* before) {
  constexpr int64_t kChunks = 4, kBlockBytes = 8192;  // for each thread
  State& s = state_of<State>(plan);
  if (!is_dense(out) || out.ndim != x.ndim) return "pad: expected dense results";
  s.zeros = mode == kPadZeros;
  s.count = x.ndim;
  for (int i = 0; i < x.ndim; ++i) {
    const int64_t after = out.shape[i] - x.shape[i] - before[i];
    s.axis[i] = padded_axis(mode, x.shape[i], x.strides[i], before[i], after);
  }
  if (x.ndim == 0) s.axis[s.count++] = padded_axis(mode, 1, 1, 0, 0);
  join_last(s);
  s.rows = element_count(out) == 0 ? 0 : 1;  // rows without elements may be many
  for (int i = 0; i < s.count - 1; ++i) s.rows *= s.axis[i].padded();
  s.team = team_size(s.rows, element_count(out));
  s.chunk = most(parts(s.rows, s.team * kChunks), 1);
  s.block = most(kBlockBytes / (s.axis[s.count - 1].padded() * kItemSize[x.dtype] + 1), 1);
  plan->workspace = 0;
  const Run by_size[] = {run_pad<uint8_t>, run_pad<uint16_t>, run_pad<uint32_t>, run_pad<uint64_t>};
  plan->run = by_size[__builtin_ctzll(kItemSize[out.dtype])];
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
