// Running sums and products along one axis: along rows if that axis is the contiguous one, else a
// strip of neighbouring lines at a time.
#include "axes.h"
#include "convert.h"
#include "kernels_linear.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kStrip = 512;  // elements of a line, or lines, held at once

template <class A>
struct State {
  Axes kept;
  Axis along, strip;  // the scanned axis; neighbouring lines (size 1: a line at a time)
  int64_t strips, x_size, out_size;
  int team;
  Read<A> read;
  Write<A> write;
};

template <int32_t op, class A>
inline A step(A total, A x) {
  if constexpr (std::is_same_v<A, int64_t>)  // integers wrap
    return op == kCumSum ? uint64_t(total) + uint64_t(x) : uint64_t(total) * uint64_t(x);
  else
    return op == kCumSum ? total + x : total * x;
}

template <class A>
void write(const State<A>& s, void* out, int64_t offset, const A* x, int64_t n, int64_t stride) {
  void* to = byte_offset(out, offset * s.out_size);
  if (stride == 1) return s.write(to, x, n);
  for (int64_t i = 0; i < n; ++i) s.write(byte_offset(to, i * stride * s.out_size), x + i, 1);
}

template <int32_t op, class A>
void scan_line(const State<A>& s, void* out, const void* x, Offsets at) {
  A buffer[kStrip], total = op == kCumSum ? A(0) : A(1);
  for (int64_t i = 0; i < s.along.size; i += kStrip) {
    const int64_t n = s.along.size - i < kStrip ? s.along.size - i : kStrip;
    s.read(buffer, byte_offset(x, (at.x + i * s.along.x) * s.x_size), n, s.along.x);
    for (int64_t j = 0; j < n; ++j) buffer[j] = total = step<op>(total, buffer[j]);
    write(s, out, at.out + i * s.along.out, buffer, n, s.along.out);
  }
}

template <int32_t op, class A>
void scan_strip(const State<A>& s, void* out, const void* x, Offsets at, int64_t width) {
  A row[kStrip], total[kStrip];
  for (int64_t j = 0; j < width; ++j) total[j] = op == kCumSum ? A(0) : A(1);
  for (int64_t i = 0; i < s.along.size; ++i) {
    s.read(row, byte_offset(x, (at.x + i * s.along.x) * s.x_size), width, s.strip.x);
    for (int64_t j = 0; j < width; ++j) total[j] = step<op>(total[j], row[j]);
    write(s, out, at.out + i * s.along.out, total, width, s.strip.out);
  }
}

template <int32_t op, class A>
int64_t run_scan(const Plan* plan, void* const* buffers, void*) {
  const State<A>& s = state_of<State<A>>(plan);
  run_tasks(s.team, s.kept.total() * s.strips, [&](int64_t task, int) {
    Offsets at = s.kept.at(task / s.strips);
    if (s.strip.size == 1) return scan_line<op>(s, buffers[0], buffers[1], at);
    const int64_t first = task % s.strips * kStrip, rest = s.strip.size - first;
    at = {at.x + first * s.strip.x, at.out + first * s.strip.out};
    scan_strip<op>(s, buffers[0], buffers[1], at, rest < kStrip ? rest : kStrip);
  });
  return -1;
}

template <class A>
const char* plan_in(Plan* plan, int32_t scan, const Operand& out, const Operand& x, int32_t axis) {
  State<A>& s = state_of<State<A>>(plan);
  plan->run = scan == kCumSum ? run_scan<kCumSum, A> : run_scan<kCumProd, A>;
  plan->workspace = 0;
  s.read = reader<A>(x.dtype);
  s.write = writer<A>(out.dtype);
  if (!s.read || !s.write) return "scan: no such combination of dtypes";
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
  s.kept.sort();
  s.kept.merge();
  const Axis inner = s.kept.count ? s.kept.axis[s.kept.count - 1] : Axis{1, 0, 0};
  const bool line = inner.x == 0 || (s.along.x <= inner.x && -s.along.x <= inner.x);
  s.strip = line ? Axis{1, 0, 0} : s.kept.pop();
  s.strips = (s.strip.size + kStrip - 1) / kStrip;
  s.team = team_size(s.kept.total() * s.strips, element_count(x));
  return nullptr;
}

}  // namespace

const char* plan_scan(Plan* plan, int32_t scan, const Operand& out, const Operand& x,
                      int32_t axis) {
  if (x.dtype == kFloat64) return plan_in<double>(plan, scan, out, x, axis);
  if (is_floating(x.dtype)) return plan_in<float>(plan, scan, out, x, axis);
  return plan_in<int64_t>(plan, scan, out, x, axis);
}

}  // namespace needle::NEEDLE_ISA
