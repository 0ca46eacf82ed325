// Running sums, products and extremes along one axis: a strip of neighbouring lines at a time,
// since each element waits for the one before. Where that axis is the contiguous one lines are
// turned for sums and products, or taken abreast where vectors are short; extremes seldom change,
// so a branch is foreseen and nothing waits.
#include "reduce/fold.h"
#include "base/table.h"
#include "base/lines.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kStrip = 512;  // elements of a line, or lines, held at once
constexpr int64_t kLong = 4096;  // floats of longer lines are summed in double
constexpr int64_t kAbreast = 4;  // lines whose elements are taken in turn

template <class A>
struct State {
  Axes kept;
  Axis along, strip;  // the scanned axis; neighbouring lines (size 1: lines themselves)
  int64_t lines;      // that are taken together; 1: a line by itself
  int64_t strips, x_size, out_size;
  int team;
  bool turned;  // the lines that are taken together
  Read<A> read;
  Write<A> write;
};

template <int32_t op, class Total, class A>
inline Total step(Total total, A x) {
  if constexpr (std::is_same_v<A, int64_t>)  // integers wrap
    return op == kCumSum ? uint64_t(total) + uint64_t(x) : uint64_t(total) * uint64_t(x);
  else
    return op == kCumSum ? total + x : total * x;
}

template <class A>
void write(const State<A>& s, void* out, int64_t offset, const A* x, int64_t n, int64_t stride) {
  write_run(s.write, s.out_size, byte_offset(out, offset * s.out_size), x, n, stride);
}

template <int32_t op, class Total, class A>
void scan_line(const State<A>& s, void* out, const void* x, Offsets at) {
  A buffer[kStrip];
  Total total = op == kCumSum ? Total(0) : Total(1);
  for (int64_t i = 0; i < s.along.size; i += kStrip) {
    const int64_t n = s.along.size - i < kStrip ? s.along.size - i : kStrip;
    s.read(buffer, byte_offset(x, (at.x + i * s.along.x) * s.x_size), n, s.along.x);
    for (int64_t j = 0; j < n; ++j) buffer[j] = static_cast<A>(total = step<op>(total, buffer[j]));
    write(s, out, at.out + i * s.along.out, buffer, n, s.along.out);
  }
}

// Dense lines of the type of sums, as squares of 16 bytes, which are transposed to be summed.
// As many lines as that takes, because lines may begin a power of two apart, which the first cache
// holds few of.
template <int32_t op, class A>
void scan_abreast(const State<A>& s, void* out, const void* x, int64_t first) {
  typedef A Part __attribute__((vector_size(16)));
  constexpr int64_t kSide = 16 / sizeof(A), kSquares = kAbreast / kSide;
  const int64_t used = least(kAbreast, s.kept.total() - first);
  if (used < kAbreast) {
    for (int64_t r = 0; r < used; ++r) scan_line<op, A>(s, out, x, s.kept.at(first + r));
    return;
  }
  const A* from[kAbreast];
  A* to[kAbreast];
  for (int64_t r = 0; r < kAbreast; ++r) {
    const Offsets at = s.kept.at(first + r);
    from[r] = as<A>(x) + at.x;
    to[r] = as<A>(out) + at.out;
  }
  Part total[kSquares];
  for (Part& each : total) each = Part{} + (op == kCumSum ? A(0) : A(1));
  int64_t i = 0;
  for (; i + kSide <= s.along.size; i += kSide) {
#pragma GCC unroll 2
    for (int64_t part = 0; part < kSquares; ++part) {
      Part square[kSide];
#pragma GCC unroll 4
      for (int64_t r = 0; r < kSide; ++r)
        std::memcpy(&square[r], from[part * kSide + r] + i, sizeof(Part));
      turn(square);
#pragma GCC unroll 4
      for (int64_t k = 0; k < kSide; ++k)
        square[k] = total[part] = op == kCumSum ? total[part] + square[k] : total[part] * square[k];
      turn(square);
#pragma GCC unroll 4
      for (int64_t r = 0; r < kSide; ++r)
        std::memcpy(to[part * kSide + r] + i, &square[r], sizeof(Part));
    }
  }
  for (int64_t r = 0; r < kAbreast; ++r) {
    A last = total[r / kSide][r % kSide];
    for (int64_t j = i; j < s.along.size; ++j) to[r][j] = last = step<op>(last, from[r][j]);
  }
}

// Lines from the first on; there may be fewer than lanes.
template <int32_t op, class Total, class A>
void scan_lines(const State<A>& s, void* out, const void* x, int64_t first) {
  constexpr int64_t kWidth = kLanes<A>;
  const int64_t used = least(kWidth, s.kept.total() - first);
  int64_t from[kWidth], to[kWidth];
  for (int64_t r = 0; r < kWidth; ++r) {
    const Offsets at = s.kept.at(first + least(r, used - 1));
    from[r] = at.x;
    to[r] = at.out;
  }
  constexpr int64_t kParts = sizeof(Total) / sizeof(A), kPart = kWidth / kParts;
  typedef A Part __attribute__((vector_size(kVectorBytes / kParts)));
  A strip[kChunk * kWidth];
  Vector<Total> total[kParts];
  for (Vector<Total>& each : total) each = splat(op == kCumSum ? Total(0) : Total(1));
  for (int64_t i = 0; i < s.along.size; i += kChunk) {
    const int64_t n = least(s.along.size - i, kChunk);
    read_lines(strip, s.read, s.x_size, byte_offset(x, i * s.along.x * s.x_size), from, n,
               s.along.x);
    for (int64_t j = 0; j < n * kParts; ++j) {
      Part found;
      std::memcpy(&found, strip + j * kPart, sizeof found);
      const auto each = __builtin_convertvector(found, Vector<Total>);
      Vector<Total>& own = total[j % kParts];
      own = op == kCumSum ? own + each : own * each;
      found = __builtin_convertvector(own, Part);
      std::memcpy(strip + j * kPart, &found, sizeof found);
    }
    write_lines(strip, s.write, s.out_size, byte_offset(out, i * s.along.out * s.out_size), to,
                used, n, s.along.out);
  }
}

template <int32_t op, class Total, class A>
void scan_strip(const State<A>& s, void* out, const void* x, Offsets at, int64_t width) {
  A row[kStrip];
  Total total[kStrip];
  for (int64_t j = 0; j < width; ++j) total[j] = op == kCumSum ? Total(0) : Total(1);
  for (int64_t i = 0; i < s.along.size; ++i) {
    s.read(row, byte_offset(x, (at.x + i * s.along.x) * s.x_size), width, s.strip.x);
    for (int64_t j = 0; j < width; ++j)
      row[j] = static_cast<A>(total[j] = step<op>(total[j], row[j]));
    write(s, out, at.out + i * s.along.out, row, width, s.strip.out);
  }
}

template <int32_t op, class Total, class A>
int64_t run_scan(const Plan* plan, void* const* buffers, void*) {
  const State<A>& s = state_of<State<A>>(plan);
  const void* x = buffers[1];
  run_tasks(s.team, parts(s.kept.total(), s.lines) * s.strips, [&](int64_t task, int) {
    if (s.turned) return scan_lines<op, Total>(s, buffers[0], x, task * s.lines);
    if (s.lines > 1) return scan_abreast<op>(s, buffers[0], x, task * s.lines);
    Offsets at = s.kept.at(task / s.strips);
    if (s.strip.size == 1) return scan_line<op, Total>(s, buffers[0], x, at);
    const int64_t first = task % s.strips * kStrip, rest = s.strip.size - first;
    at = {at.x + first * s.strip.x, at.out + first * s.strip.out};
    scan_strip<op, Total>(s, buffers[0], x, at, rest < kStrip ? rest : kStrip);
  });
  return -1;
}

// ---- extremes: of equal ones the last; NaN is better than any number

template <int32_t op, class A>
inline bool takes_over(A x, A best) {
  return (op == kMax ? x >= best : x <= best) || x != x;
}

template <int32_t op, class A>
void extremes_line(const State<A>& s, void* out, int64_t* places, const void* x, Offsets at) {
  A buffer[kStrip], best = identity<op, A>();
  int64_t place = 0;
  for (int64_t i = 0; i < s.along.size; i += kStrip) {
    const int64_t n = least(s.along.size - i, kStrip);
    s.read(buffer, byte_offset(x, (at.x + i * s.along.x) * s.x_size), n, s.along.x);
    for (int64_t j = 0; j < n; ++j) {
      if (takes_over<op>(buffer[j], best)) best = buffer[j], place = i + j;
      buffer[j] = best;
      places[at.out + (i + j) * s.along.out] = place;
    }
    write(s, out, at.out + i * s.along.out, buffer, n, s.along.out);
  }
}

template <int32_t op, class A>
void extremes_strip(const State<A>& s, void* out, int64_t* places, const void* x, Offsets at,
                    int64_t width) {
  A row[kStrip], best[kStrip];
  int64_t place[kStrip] = {};
  for (int64_t j = 0; j < width; ++j) best[j] = identity<op, A>();
  for (int64_t i = 0; i < s.along.size; ++i) {
    s.read(row, byte_offset(x, (at.x + i * s.along.x) * s.x_size), width, s.strip.x);
    for (int64_t j = 0; j < width; ++j) {
      const bool better = takes_over<op>(row[j], best[j]);
      best[j] = better ? row[j] : best[j];
      place[j] = better ? i : place[j];
    }
    const int64_t to = at.out + i * s.along.out;
    write(s, out, to, best, width, s.strip.out);
    for (int64_t j = 0; j < width; ++j) places[to + j * s.strip.out] = place[j];
  }
}

template <int32_t op, class A>
int64_t run_extremes(const Plan* plan, void* const* buffers, void*) {
  const State<A>& s = state_of<State<A>>(plan);
  int64_t* const places = static_cast<int64_t*>(buffers[1]);
  run_tasks(s.team, s.kept.total() * s.strips, [&](int64_t task, int) {
    Offsets at = s.kept.at(task / s.strips);
    if (s.strip.size == 1) return extremes_line<op>(s, buffers[0], places, buffers[2], at);
    const int64_t first = task % s.strips * kStrip;
    at = {at.x + first * s.strip.x, at.out + first * s.strip.out};
    extremes_strip<op>(s, buffers[0], places, buffers[2], at, least(s.strip.size - first, kStrip));
  });
  return -1;
}

template <class A>
const char* plan_in(Plan* plan, int32_t scan, const Operand& out, const Operand& x, int32_t axis) {
  State<A>& s = state_of<State<A>>(plan);
  plan->run = scan == kCumSum ? run_scan<kCumSum, A, A> : run_scan<kCumProd, A, A>;
  plan->workspace = 0;
  s.read = reader<A>(x.dtype);
  s.write = writer<A>(out.dtype);
  if (!s.read || !s.write) return "scan: unsupported combination of dtypes";
  s.x_size = kItemSize[x.dtype];
  s.out_size = kItemSize[out.dtype];
  s.kept.count = 0;
  s.along = {1, 0, 0};
  for (int i = 0; i < x.ndim; ++i) {
    if (i == axis)
      s.along = {x.shape[i], x.strides[i], out.strides[i]};
    else
      s.kept.add(x.shape[i], x.strides[i], out.strides[i]);
  }
  if constexpr (std::is_same_v<A, float>)
    if (scan == kCumSum && s.along.size > kLong) plan->run = run_scan<kCumSum, double, A>;
  s.kept.sort();
  s.kept.merge();
  const Axis inner = s.kept.count ? s.kept.axis[s.kept.count - 1] : Axis{1, 0, 0};
  const bool line = inner.x == 0 || (s.along.x <= inner.x && -s.along.x <= inner.x);
  s.strip = line ? Axis{1, 0, 0} : s.kept.pop();
  // lines without elements may be many
  s.strips = element_count(x) == 0 ? 0 : parts(s.strip.size, kStrip);
  const bool dense = kVectorBytes <= 32 && s.along.size <= kLong && x.dtype == out.dtype &&
                     kItemSize[x.dtype] == sizeof(A) && s.along.x == 1 && s.along.out == 1;
  const bool together = s.strip.size == 1 && s.kept.total() >= kLanes<A> && s.along.size > 1;
  s.turned = together && !dense;
  s.lines = !together ? 1 : dense ? kAbreast : kLanes<A>;
  s.team = team_size(parts(s.kept.total(), s.lines) * s.strips, element_count(x));
  return nullptr;
}

template <class A>
const char* plan_extremes_in(Plan* plan, const Operand& values, const Operand& x, int32_t axis,
                             bool largest) {
  if (const char* error = plan_in<A>(plan, kCumSum, values, x, axis)) return error;
  State<A>& s = state_of<State<A>>(plan);
  plan->run = largest ? run_extremes<kMax, A> : run_extremes<kMin, A>;
  s.team = team_size(s.kept.total() * s.strips, element_count(x));
  return nullptr;
}

}  // namespace

const char* plan_extremes(Plan* plan, const Operand& values, const Operand& x, int32_t axis,
                          bool largest) {
  if (x.dtype == kFloat64) return plan_extremes_in<double>(plan, values, x, axis, largest);
  if (is_floating(x.dtype)) return plan_extremes_in<float>(plan, values, x, axis, largest);
  return plan_extremes_in<int64_t>(plan, values, x, axis, largest);
}

const char* plan_scan(Plan* plan, int32_t scan, const Operand& out, const Operand& x,
                      int32_t axis) {
  if (x.dtype == kFloat64) return plan_in<double>(plan, scan, out, x, axis);
  if (is_floating(x.dtype)) return plan_in<float>(plan, scan, out, x, axis);
  return plan_in<int64_t>(plan, scan, out, x, axis);
}

}  // namespace needle::NEEDLE_ISA
