// Reductions of what a fused program computes, a piece at a time, which is folded while it is in a
// cache. The work is cut as for an array that lies in memory, so the bits are the same.
#include <array>

#include "base/table.h"
#include "elementwise/interpreter.h"
#include "reduce/totals.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kWindow = 4096;  // elements computed at once, if rows are short
constexpr int64_t kMostElements = int64_t{1} << 40;
static_assert(kWindow >= kRun && kRows * kStrip >= kWindow);

struct ReducedProgram {
  TileProgram tiles;      // its last output is what is reduced: dense, [outer, length, inner],
  int64_t length, inner;  // over the middle axis
  int16_t team;
  int8_t reduction, out;

  DType from() const { return DType(tiles.operands[tiles.n_outs - 1].dtype); }
  int64_t outer() const {
    int64_t total = 1;
    for (int d = 0; d < tiles.walk.ndim; ++d) total *= tiles.walk.dim(d)[0];
    return total / (length * inner);
  }
  const char* plan_fold(Plan* plan) const {
    const int64_t shape[] = {outer(), length, inner}, strides[] = {length * inner, inner, 1};
    const int64_t kept[] = {shape[0], 1, inner}, kept_strides[] = {inner, inner, 1};
    return plan_reduce(plan, reduction, {DType(out), 3, kept, kept_strides},
                       {from(), 3, shape, strides}, 1u << 1, 1.0);
  }
};

struct Source {
  const ReducedProgram& program;
  void* const* buffers;
};

// What is reduced, computed where it is asked for: each element once, in order, by one thread.
class Computed {
 public:
  Computed(const Source& from, int64_t end)
      : end_of_task(end),
        size_(kItemSize[from.program.from()]),
        buffers_(own(from, values_)),
        interpreter_(from.program.tiles, buffers_.data(), from.program.tiles.n_outs - 1) {}
  Computed(const Computed&) = delete;
  Computed& operator=(const Computed&) = delete;

  // n elements. If they are few, those that follow up to `end` are computed with them; they are
  // asked for in pieces of the same length.
  const void* at(int64_t first, int64_t n, int64_t end) {
    if (first < begin_ || first + n > end_) {
      begin_ = first;
      end_ = first + most(n, least(most(kWindow / n, 1) * n, end - first));
      interpreter_.compute(begin_, end_ - begin_, 0);
    }
    return values_ + (first - begin_) * size_;
  }

  // n rows of `width` elements, `step` apart, which then lie kStrip apart.
  const void* rows(int64_t first, int64_t n, int64_t step, int64_t width) {
    for (int64_t i = 0; i < n; ++i) interpreter_.compute(first + i * step, width, i * kStrip);
    return values_;
  }

  const int64_t end_of_task;

 private:
  using Buffers = std::array<void*, kMaxOperands>;
  static Buffers own(const Source& from, void* values) {
    const TileProgram& tiles = from.program.tiles;
    Buffers buffers;
    std::copy_n(from.buffers, tiles.n_outs + tiles.n_inputs, buffers.begin());
    buffers[tiles.n_outs - 1] = values;
    return buffers;
  }

  int64_t size_, begin_ = 0, end_ = 0;
  Buffers buffers_;
  Interpreter interpreter_;
  alignas(64) char values_[kRows * kStrip * sizeof(double)];
};

// As fold_dense, in blocks.
template <int32_t op, class A>
A fold_computed(Computed& from, int64_t first, int64_t n) {
  const int64_t whole = n / kLanes<A> * kLanes<A>;
  Tree<op, A> tree;
  const A* x = nullptr;
  for (int64_t i = 0; i < n; i += kRun) {
    x = as<A>(from.at(first + i, least(n - i, kRun), 0));
    if (i < whole) tree.add(fold_run<op>(x, least(whole - i, kRun), Order::kTogether), i / kRun);
  }
  A total = fold_lanes<op, A>(tree.total());
  for (int64_t i = whole; i < n; ++i) total = combine<op>(total, x[i % kRun]);
  return total;
}

// As fold_row.
template <int32_t op, class A>
A fold_row(const State<A>& s, Computed& from, int64_t origin, int64_t begin, int64_t end,
           int64_t limit) {
  const int64_t n = end - begin;
  if (s.dense && n > kRun) return fold_computed<op, A>(from, origin + begin, n);
  if (!s.dense && n > kBlock) {
    const int64_t half = middle(begin, end, kBlock);
    const A left = fold_row<op>(s, from, origin, begin, half, limit);
    return combine<op>(left, fold_row<op>(s, from, origin, half, end, limit));
  }
  return fold_row<op>(s, from.at(origin + begin, n, limit), 0, 0, n);
}

// As fold_strip.
template <int32_t op, class A>
void fold_strip(const State<A>& s, Computed& from, const Unit& unit, int64_t begin, int64_t end,
                int64_t limit, A* total) {
  if (end - begin > kRows) {
    A other[kStrip];
    const int64_t half = middle(begin, end, kRows);
    fold_strip<op>(s, from, unit, begin, half, limit, total);
    fold_strip<op>(s, from, unit, half, end, limit, other);
    return combine_into<op>(total, other, unit.width);
  }
  const int64_t step = s.strip.size, first = unit.x + begin * step, n = end - begin;
  const void* x =
      s.strips == 1 ? from.at(first, n * step, limit) : from.rows(first, n, step, unit.width);
  fold_strip<op>(s, x, {0, 0, unit.width}, 0, n, total);
}

template <int32_t op, class A, int64_t most_results>
struct FoldComputed : Fold<op, A, most_results> {
  using typename Fold<op, A, most_results>::Part;

  static Computed source(const Layout& s, const void* x, int64_t last) {
    return Computed(*as<Source>(x), last * s.length);
  }
  static void fold(const State<A>& s, Computed& from, const Unit& unit, int64_t begin, int64_t end,
                   Part& part) {
    if constexpr (most_results == 1) {
      const bool whole = end - begin == s.length && s.length <= (s.dense ? kRun : kBlock);
      const int64_t limit = whole ? from.end_of_task : unit.x + end;
      *part.total = fold_row<op>(s, from, unit.x, begin, end, limit);
    } else {
      fold_strip<op>(s, from, unit, begin, end, unit.x + end * s.strip.size, part.total);
    }
  }
};

template <int32_t op, class A, int64_t most_results>
int64_t run_reduced(const Plan* plan, void* const* buffers, void* workspace) {
  const auto& program = state_of<ReducedProgram>(plan);
  Plan fold;
  program.plan_fold(&fold);
  State<A>& s = state_of<State<A>>(&fold);
  s.team = program.team;
  s.order = Order::kTogether;
  if (s.strip.size > 1 && s.reduced.count)
    s.reduced.axis[0].x = s.strips == 1 ? s.strip.size : kStrip;
  const Source source = {program, buffers};
  void* const own[] = {buffers[program.tiles.n_outs - 1], const_cast<Source*>(&source)};
  return run_units<FoldComputed<op, A, most_results>, A>(&fold, own, workspace);
}

// ---- planning

template <int32_t op, class A>
Run run_of(bool rows) {
  return rows ? run_reduced<op, A, 1> : run_reduced<op, A, kStrip>;
}

template <class A>
const char* plan_in(Plan* plan, ReducedProgram& program) {
  Plan fold;
  if (const char* problem = program.plan_fold(&fold)) return problem;
  const State<A>& s = state_of<State<A>>(&fold);
  const bool rows = s.strip.size == 1;
  if (!rows && s.strip.x != 1) return "rows are too short";
  program.team = static_cast<int16_t>(s.team);
  plan->workspace = fold.workspace;
  const int32_t reduction = program.reduction;
  plan->run = reduction == kMax   ? run_of<kMax, A>(rows)
              : reduction == kMin ? run_of<kMin, A>(rows)
                                  : run_of<kSum, A>(rows);
  return nullptr;
}

// Splits a shape where the reduced axes begin and end; false if they do not lie side by side.
bool split(ReducedProgram& program, const Operand& x, uint32_t axes) {
  int64_t outer = 1;
  program.length = program.inner = 1;
  for (int d = 0; d < x.ndim; ++d) {
    const bool reduced = axes >> d & 1;
    if (x.shape[d] == 1) continue;
    if (reduced && program.inner > 1) return false;
    int64_t& size = reduced ? program.length : program.length > 1 ? program.inner : outer;
    size = product({size, x.shape[d]});
  }
  const int64_t total = product({outer, program.length, program.inner});
  return total > 0 && total <= kMostElements;
}

// Whether the walk goes through an output in C order, in whole rows or parts of one.
bool is_in_order(const Walk& walk, int out) {
  int64_t stride = 1;
  for (int d = 0; d < walk.ndim; stride *= walk.dim(d++)[0])
    if (walk.dim(d)[0] > 1 && walk.dim(d)[1 + out] != stride) return false;
  return walk.rows == 1 || walk.cols == walk.dim(0)[0];
}

}  // namespace

const char* plan_fused_reduce(Plan* plan, const FusedReduction& reduction,
                              const FusedProgram& program, const Operand* outs, int32_t n_outs,
                              const Operand* inputs, int32_t n_inputs) {
  if (n_outs > kMaxOperands || n_inputs < 1 || program.length < 1)
    return "there is no such program";
  const int32_t op = reduction.reduction;
  if (op != kSum && op != kMean && op != kMax && op != kMin) return "there is no such reduction";
  auto& own = state_of<ReducedProgram>(plan);
  const Operand& whole = inputs[0];
  if (!split(own, whole, reduction.axes)) return "the reduced axes do not lie side by side";
  if (!is_dense(outs[n_outs - 1])) return "the result is not dense";

  int64_t strides[kMaxDims], stride = 1;
  for (int d = whole.ndim - 1; d >= 0; stride *= whole.shape[d--]) strides[d] = stride;
  Operand written[kMaxOperands];
  std::copy_n(outs, n_outs, written);
  written[n_outs - 1] = {reduction.dtype, whole.ndim, whole.shape, strides};
  if (const char* problem = plan_fused(plan, program, written, n_outs, inputs, n_inputs))
    return problem;
  if (!is_in_order(own.tiles.walk, n_outs - 1)) return "an operand lies in another order";
  own.reduction = static_cast<int8_t>(op);
  own.out = static_cast<int8_t>(outs[n_outs - 1].dtype);
  if (reduction.dtype == kFloat64) return plan_in<double>(plan, own);
  return is_floating(reduction.dtype) ? plan_in<float>(plan, own) : plan_in<int64_t>(plan, own);
}

}  // namespace needle::NEEDLE_ISA
