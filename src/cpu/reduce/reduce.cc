// Sums, products, extremes and their positions over axes (reduce.h says how the work is cut).
#include "reduce/totals.h"

#include "base/table.h"

namespace needle::NEEDLE_ISA {
namespace {

// ---- argmax, argmin

template <class A>
struct Best {
  A value[kStrip];
  int64_t position[kStrip];
};

// Where the first of n numbers is that equals `value`, one of them, or if that is NaN, is NaN, too.
template <class A>
int64_t first_place(const A* x, int64_t n, A value) {
  using Lane = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;
  constexpr int64_t kWidth = kLanes<A>;
  const auto is_there = [value](const A* at) -> Vector<Lane> {
    const Vector<A> v = load(at);
    return (v == value) | (v != v);
  };
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    const A* at = x + i;
    const Vector<Lane> first = is_there(at) | is_there(at + kWidth);
    const Vector<Lane> second = is_there(at + 2 * kWidth) | is_there(at + 3 * kWidth);
    if (add_lanes<Lane>(first | second) != 0) break;
  }
  while (x[i] != value && x[i] == x[i]) ++i;
  return i;
}

template <int32_t op, class A>
void find_in_row(const State<A>& s, const void* x, int64_t origin, int64_t begin, int64_t end,
                 Best<A>& best) {
  best.position[0] = -1;
  for (; begin < end; begin += kBlock) {
    const int64_t stop = begin + kBlock < end ? begin + kBlock : end;
    for_numbers(s, x, origin, begin, stop, [&](const A* element, int64_t n, int64_t position) {
      const A value = fold_dense<op>(element, n, s.order);
      if (best.position[0] >= 0 && !better<op>(value, best.value[0])) return;
      best.value[0] = value;
      best.position[0] = position + first_place(element, n, value);
    });
  }
}

template <int32_t op, class A>
void find_in_strip(const State<A>& s, const void* x, const Unit& unit, int64_t begin, int64_t end,
                   Best<A>& best) {
  A buffer[kStrip];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t offset = unit.x + s.reduced.at(i).x;
    const A* row = fetch(s, x, offset, unit.width, s.strip.x, buffer);
    for (int64_t j = 0; j < unit.width; ++j) {
      const bool take = i == begin || better<op>(row[j], best.value[j]);
      best.value[j] = take ? row[j] : best.value[j];
      best.position[j] = take ? i : best.position[j];
    }
  }
}

template <int32_t op, class A>
struct Find : ReadsMemory {
  using Part = Best<A>;
  static void fold(const State<A>& s, const void* x, const Unit& unit, int64_t begin, int64_t end,
                   Part& best) {
    if (s.strip.size == 1)
      find_in_row<op>(s, x, unit.x, begin, end, best);
    else
      find_in_strip<op>(s, x, unit, begin, end, best);
  }
  static void join(Part& best, const Part& later, int64_t width) {
    for (int64_t j = 0; j < width; ++j) {
      if (!better<op>(later.value[j], best.value[j])) continue;
      best.value[j] = later.value[j];
      best.position[j] = later.position[j];
    }
  }
  static void finish(const State<A>& s, void* out, const void*, const Unit& unit,
                     const Part& best) {
    for (int64_t j = 0; j < unit.width; ++j)
      as<int64_t>(out)[unit.out + j * s.strip.out] = best.position[j];
  }
};

// ---- planning

bool is_arg(int32_t op) { return op == kArgMax || op == kArgMin; }

template <int32_t op, class A>
Run fold_run_of(const Layout& s) {
  return s.strip.size == 1 ? run_units<Fold<op, A, 1>, A> : run_units<Fold<op, A, kStrip>, A>;
}

template <class A>
Run choose_run(const Layout& s, int32_t op) {
  switch (op) {
    case kSum:
    case kMean:
      return fold_run_of<kSum, A>(s);
    case kProd:
      return fold_run_of<kProd, A>(s);
    case kMax:
      return fold_run_of<kMax, A>(s);
    case kMin:
      return fold_run_of<kMin, A>(s);
    case kAny:
      return fold_run_of<kAny, int64_t>(s);
    case kAll:
      return fold_run_of<kAll, int64_t>(s);
    case kArgMax:
      return run_units<Find<kMax, A>, A>;
    case kArgMin:
      return run_units<Find<kMin, A>, A>;
    case kVariance:
    case kDeviation:
    case kNorm:
      return variance_run<A>(op);
    default:
      return nullptr;
  }
}

// Of a chunk.
template <class A>
int64_t part_bytes(const Layout& s, int32_t op) {
  if (op >= kVariance) return sizeof(Moments<A>);
  if (is_arg(op)) return sizeof(Best<A>);
  return s.strip.size == 1 ? sizeof(Totals<A, 1>) : sizeof(Totals<A, kStrip>);
}

template <class A>
const char* plan_in(Plan* plan, int32_t op, const Operand& out, const Operand& x, uint32_t axes,
                    Read<A> read, double factor = 1.0) {
  State<A>& s = state_of<State<A>>(plan);
  s.read = read;
  s.write = writer<A>(out.dtype);
  if (!s.read || !s.write) return "reduce: unsupported combination of dtypes";
  s.x_size = kItemSize[x.dtype];
  s.out_size = kItemSize[out.dtype];
  s.mean = op == kMean;
  s.factor = factor;
  s.dtype = x.dtype;
  split_axes(s, x, axes, is_arg(op));
  const bool truth = op == kAny || op == kAll;
  const bool same = (std::is_same_v<A, float> && x.dtype == kFloat32) ||
                    (std::is_same_v<A, double> && x.dtype == kFloat64) ||
                    (std::is_same_v<A, int64_t> && x.dtype == kInt64 && !truth);
  choose_strip(s, same);
  choose_tasks(s);
  s.order = order_of(s);
  plan->workspace = s.chunks > 1 ? product({s.units, s.chunks, part_bytes<A>(s, op)}) : 0;
  plan->run = choose_run<A>(s, op);
  return plan->run ? nullptr : "reduce: unsupported combination of dtypes";
}

}  // namespace

const char* plan_reduce(Plan* plan, int32_t op, const Operand& out, const Operand& x, uint32_t axes,
                        double factor) {
  if (is_arg(op) && out.dtype != kInt64) return "reduce: positions are int64";
  if (op == kAny || op == kAll) {
    if (out.dtype != kBool) return "reduce: any and all give bool";
    return plan_in<int64_t>(plan, op, out, x, axes, truth_reader(x.dtype));
  }
  if (op > kVariance && (x.dtype != out.dtype || kItemSize[x.dtype] < 4))
    return "reduce: deviations and norms of float32 or float64";
  if (x.dtype == kFloat64)
    return plan_in<double>(plan, op, is_arg(op) ? Operand{kFloat64, 0, nullptr, nullptr} : out, x,
                           axes, reader<double>(x.dtype), factor);
  if (is_floating(x.dtype))
    return plan_in<float>(plan, op, is_arg(op) ? Operand{kFloat32, 0, nullptr, nullptr} : out, x,
                          axes, reader<float>(x.dtype), factor);
  if (op == kMean) return "reduce: mean needs a floating dtype";
  return plan_in<int64_t>(plan, op, out, x, axes, reader<int64_t>(x.dtype));
}

}  // namespace needle::NEEDLE_ISA
