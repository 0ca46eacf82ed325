// Gradients of products along an axis, without a division: so they are right where elements are
// zero, too.
//
//     kProductGrad         dx[k] = (product before k) * (product behind k) * g[k]
//     kRunningProductGrad  dx[k] = (product before k) * s[k],  s[k] = g[k] + x[k + 1] * s[k + 1]
//
// A strip of lines is taken as a whole: from its end for what is behind each element, then from its
// beginning. Lines of which a product leaves the range of their type on the way are computed again,
// with exponents of their own: the gradient may be in the range all the same.
#include <cmath>
#include <limits>

#include "gemm/kernels_linear.h"
#include "base/lines.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kVectors = 4;     // of neighbouring lines in a strip
constexpr int64_t kLong = 1 << 14;  // of longer lines there is one, because all of it is in memory
constexpr int64_t kLongest = 1 << 18;  // longer lines are taken one at a time, for the same reason

template <class A>
struct State {
  Axes kept;          // x's and dx's step, then g's
  Axis along, strip;  // the axis; neighbouring lines (size 1: lines that are turned)
  int64_t width;      // of a strip: 1, kLanes<A> or kVectors times as many
  int64_t strips, item;
  int team;
  Read<A> read;
  Write<A> write;
};

// Whether a product of two numbers overflowed, or lost bits because it is so small.
template <class A, class V>
inline auto leaves_range(const V& product, const V& a, const V& b) {
  using Limits = std::numeric_limits<A>;
  const auto is_below = [&](A limit) { return product < limit && product > -limit; };
  if constexpr (std::is_same_v<V, A>) {
    return !(product <= Limits::max() && product >= Limits::lowest()) ||
           (is_below(Limits::min()) && a != 0 && b != 0);
  } else {
    const auto inside = (product <= Limits::max()) & (product >= Limits::lowest());
    const auto tiny = (product < Limits::min()) & (product > -Limits::min());
    return ~inside | (tiny & (a != 0) & (b != 0));
  }
}

// Whether no product of n of these numbers can leave the range: checks would find nothing.
template <class A>
bool stays_in_range(const A* x, int64_t size, int64_t n) {
  A most = 1, least = 1;
  for (int64_t i = 0; i < size; ++i) {
    const A v = x[i] < 0 ? -x[i] : x[i];
    most = v > most ? v : most;
    least = v < least && v != 0 ? v : least;
  }
  const double limit = sizeof(A) == 8 ? 900 : 100;
  return n * std::log2(most) < limit && -n * std::log2(least) < limit;  // not so for infinities
}

// V: a number, or a vector of lines; `count` of them are a row of the strip. The compiler would
// take the lanes of an array one by one, which is a hundred times as slow where they are so small
// that the processor needs its microcode for each. Returns whether a line left the range.
template <int32_t kind, bool checks, int64_t count, class V, class A>
bool take_strip(const A* __restrict x, const A* __restrict g, A* __restrict out, int64_t n) {
  constexpr int64_t kStep = sizeof(V) / sizeof(A), kRow = count * kStep;
  const auto get = [](const A* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  };
  const auto put = [](A* p, const V& v) { std::memcpy(p, &v, sizeof v); };
  decltype(leaves_range<A>(V{}, V{}, V{})) left{};
  const auto times = [&](const V& a, const V& b) {
    const V product = a * b;
    if constexpr (checks) left = left | leaves_range<A>(product, a, b);
    return product;
  };
  for (int64_t j = 0; j < kRow; j += kStep) {
    V behind = {}, before = {};
    behind = before = before + A(1);
    if (kind == kRunningProductGrad) behind = get(g + (n - 1) * kRow + j);
    put(out + (n - 1) * kRow + j, behind);
    for (int64_t i = (n - 2) * kRow + j; i >= 0; i -= kRow) {
      behind = times(behind, get(x + kRow + i));
      if (kind == kRunningProductGrad) behind += get(g + i);
      put(out + i, behind);
    }
    for (int64_t i = j; i < n * kRow; i += kRow) {
      V found = times(get(out + i), before);
      if (kind == kProductGrad) found *= get(g + i);
      put(out + i, found);
      before = times(before, get(x + i));
    }
  }
  if constexpr (std::is_same_v<V, A>)
    return left;
  else
    return add_lanes<std::conditional_t<sizeof(A) == 8, int64_t, int32_t>>(left) != 0;
}

// part * 2 ** exponent
struct Scaled {
  double part;
  int exponent;

  static Scaled of(double part, int64_t exponent) {
    int more;
    part = std::frexp(part, &more);
    return {part, part == 0 ? 0 : static_cast<int>(exponent + more)};
  }
  Scaled operator*(const Scaled& other) const {
    return of(part * other.part, int64_t{exponent} + other.exponent);
  }
  Scaled operator+(const Scaled& other) const {
    if (part == 0) return other;
    if (other.part == 0) return *this;
    const Scaled &large = exponent >= other.exponent ? *this : other,
                 &small = exponent >= other.exponent ? other : *this;
    return of(large.part + std::ldexp(small.part, small.exponent - large.exponent), large.exponent);
  }
};

// The line of a strip whose elements are `row` apart. exponents has the same places as out.
template <int32_t kind, class A>
void take_line_scaled(const A* x, const A* g, A* out, int32_t* exponents, int64_t n, int64_t row) {
  for (int64_t i = 0; i < n; ++i)
    if (!(std::fabs(x[i * row]) < INFINITY && std::fabs(g[i * row]) < INFINITY)) return;
  const auto scaled = [row](const A* p, int64_t i) { return Scaled::of(p[i * row], 0); };
  Scaled behind = kind == kProductGrad ? Scaled::of(1, 0) : scaled(g, n - 1);
  for (int64_t i = n - 1; i >= 0; --i) {
    if (i < n - 1) behind = behind * scaled(x, i + 1);
    if (i < n - 1 && kind == kRunningProductGrad) behind = behind + scaled(g, i);
    out[i * row] = static_cast<A>(behind.part);
    exponents[i * row] = behind.exponent;
  }
  Scaled before = Scaled::of(1, 0);
  for (int64_t i = 0; i < n; ++i) {
    Scaled found = before * Scaled::of(out[i * row], exponents[i * row]);
    if (kind == kProductGrad) found = found * scaled(g, i);
    out[i * row] = static_cast<A>(std::ldexp(found.part, found.exponent));
    before = before * scaled(x, i);
  }
}

template <int32_t kind, class A>
struct Task {
  const State<A>& s;
  void* out;
  const void *x, *g;
  A *strip_x, *strip_g, *strip_out;
  int32_t* exponents;

  Task(const State<A>& state, void* const* buffers, void* workspace, int thread)
      : s(state), out(buffers[0]), x(buffers[1]), g(buffers[2]) {
    const int64_t size = state.along.size * state.width;
    strip_x = as<A>(workspace) + 4 * size * thread;
    strip_g = strip_x + size;
    strip_out = strip_g + size;
    exponents = reinterpret_cast<int32_t*>(strip_out + size);
  }

  // Of `lines` lines, of which each element is a row.
  template <int64_t count, class V>
  void take(int64_t lines) const {
    const int64_t n = s.along.size, row = count * static_cast<int64_t>(sizeof(V) / sizeof(A));
    if (stays_in_range(strip_x, n * row, n) &&
        (kind == kProductGrad || stays_in_range(strip_g, n * row, 2))) {
      take_strip<kind, false, count, V>(strip_x, strip_g, strip_out, n);
      return;
    }
    if (!take_strip<kind, true, count, V>(strip_x, strip_g, strip_out, n)) return;
    for (int64_t j = 0; j < lines; ++j)
      take_line_scaled<kind>(strip_x + j, strip_g + j, strip_out + j, exponents + j, n, row);
  }

  void one_line(Offsets at) const {
    const int64_t n = s.along.size;
    s.read(strip_x, byte_offset(x, at.x * s.item), n, s.along.x);
    s.read(strip_g, byte_offset(g, at.out * s.item), n, s.along.out);
    take<1, A>(1);
    write_run(s.write, s.item, byte_offset(out, at.x * s.item), strip_out, n, s.along.x);
  }

  void turned_lines(int64_t first) const {
    constexpr int64_t kWidth = kLanes<A>;
    const int64_t used = least(kWidth, s.kept.total() - first), n = s.along.size;
    int64_t lines[kWidth], of_g[kWidth];
    for (int64_t r = 0; r < kWidth; ++r) {
      const Offsets at = s.kept.at(first + least(r, used - 1));
      lines[r] = at.x;
      of_g[r] = at.out;
    }
    read_lines(strip_x, s.read, s.item, x, lines, n, s.along.x);
    read_lines(strip_g, s.read, s.item, g, of_g, n, s.along.out);
    take<1, Vector<A>>(used);
    write_lines(strip_out, s.write, s.item, out, lines, used, n, s.along.x);
  }

  template <int64_t vectors>
  void neighbours(Offsets at, int64_t count) const {
    constexpr int64_t kWidth = vectors * kLanes<A>;
    const int64_t n = s.along.size;
    for (int64_t i = 0; i < n * kWidth && count < kWidth; ++i) strip_x[i] = strip_g[i] = A(0);
    for (int64_t i = 0; i < n; ++i) {
      s.read(strip_x + i * kWidth, byte_offset(x, (at.x + i * s.along.x) * s.item), count,
             s.strip.x);
      s.read(strip_g + i * kWidth, byte_offset(g, (at.out + i * s.along.out) * s.item), count,
             s.strip.out);
    }
    take<vectors, Vector<A>>(count);
    for (int64_t i = 0; i < n; ++i)
      write_run(s.write, s.item, byte_offset(out, (at.x + i * s.along.x) * s.item),
                strip_out + i * kWidth, count, s.strip.x);
  }
};

template <int32_t kind, class A>
int64_t run_product_grad(const Plan* plan, void* const* buffers, void* workspace) {
  const State<A>& s = state_of<State<A>>(plan);
  if (s.along.size == 0) return -1;
  const bool turns = s.strip.size == 1 && s.width > 1;
  const int64_t tasks = turns ? parts(s.kept.total(), s.width) : s.kept.total() * s.strips;
  run_tasks(s.team, tasks, [&](int64_t i, int thread) {
    const Task<kind, A> task(s, buffers, workspace, thread);
    if (turns) return task.turned_lines(i * s.width);
    Offsets at = s.kept.at(i / s.strips);
    if (s.strip.size == 1) return task.one_line(at);
    const int64_t first = i % s.strips * s.width;
    at = {at.x + first * s.strip.x, at.out + first * s.strip.out};
    const int64_t count = least(s.width, s.strip.size - first);
    s.width == kLanes<A> ? task.template neighbours<1>(at, count)
                         : task.template neighbours<kVectors>(at, count);
  });
  return -1;
}

template <class A>
const char* plan_in(Plan* plan, int32_t kind, const Operand& x, const Operand& g, int32_t axis) {
  State<A>& s = state_of<State<A>>(plan);
  plan->run = kind == kProductGrad ? run_product_grad<kProductGrad, A>
                                   : run_product_grad<kRunningProductGrad, A>;
  s.read = reader<A>(x.dtype);
  s.write = writer<A>(x.dtype);
  s.item = kItemSize[x.dtype];
  s.kept.count = 0;
  s.along = {1, 0, 0};
  for (int i = 0; i < x.ndim; ++i) {
    if (i == axis)
      s.along = {x.shape[i], x.strides[i], g.strides[i]};
    else
      s.kept.add(x.shape[i], x.strides[i], g.strides[i]);
  }
  s.kept.sort();
  s.kept.merge();
  const Axis inner = s.kept.count ? s.kept.axis[s.kept.count - 1] : Axis{1, 0, 0};
  const bool is_long = s.along.size > kLongest;
  const bool is_line = s.along.x <= inner.x || inner.size == 1 || is_long;
  s.strip = is_line ? Axis{1, 0, 0} : s.kept.pop();
  const bool turns = is_line && !is_long && s.kept.total() >= kLanes<A>;
  s.width = is_line && !turns ? 1 : kLanes<A>;
  if (!is_line && s.along.size <= kLong) s.width *= kVectors;
  s.strips = parts(s.strip.size, s.width);
  const int64_t tasks = turns ? parts(s.kept.total(), s.width) : s.kept.total() * s.strips;
  s.team = team_size(tasks, element_count(x));
  plan->workspace = 4 * s.along.size * s.width * s.team * static_cast<int64_t>(sizeof(A));
  return nullptr;
}

}  // namespace

const char* plan_product_grad(Plan* plan, int32_t kind, const Operand& x, const Operand& g,
                              int32_t axis) {
  if (!is_floating(x.dtype) || x.dtype != g.dtype) return "gradients are floating";
  if (!is_dense(x)) return "products of dense arrays";
  if (x.dtype == kFloat64) return plan_in<double>(plan, kind, x, g, axis);
  return plan_in<float>(plan, kind, x, g, axis);
}

}  // namespace needle::NEEDLE_ISA
