// Gather, and scatter_add without atomic additions: the same sums in the same order every time.
#include "math.cuh"

// The first index out of range, of the first kernel that met one: a ticket and a position in one
// word, of which the smallest is kept.
constexpr int kPositionBits = 40;
__device__ inline void report(u64* errors, i64 ticket, i64 position) {
  atomicMin(errors, static_cast<u64>(ticket) << kPositionBits | static_cast<u64>(position));
}

// g: out, x without the axis, index.
template <class T, class I, class Index>
__global__ void __launch_bounds__(256) gather(T* out, const T* x, const I* index, Geometry<3> g,
                                              i64 size, i64 axis_step, u64* errors, i64 ticket) {
  const Index i = position_in_grid<Index>();
  if (i >= static_cast<Index>(g.count)) return;
  const Offsets<3, Index> at(g, i);
  i64 from = static_cast<i64>(index[at.at[2]]);
  if (from < 0) from += size;
  if (from < 0 || from >= size) {
    report(errors, ticket, i);
    return;
  }
  out[at.at[0]] = x[at.at[1] + from * axis_step];
}

// The offset in out that each update goes to. g: index, out without the axis, and a row-major
// position for messages.
template <class I>
__global__ void __launch_bounds__(256)
    scatter_keys(u64* keys, i64* order, const I* index, Geometry<3> g, i64 size, i64 axis_step,
                 u64* errors, i64 ticket) {
  const i64 i = position_in_grid<i64>();
  if (i >= g.count) return;
  const Offsets<3, i64> at(g, i);
  i64 to = static_cast<i64>(index[at.at[0]]);
  if (to < 0) to += size;
  const bool bad = to < 0 || to >= size;
  if (bad) report(errors, ticket, at.at[2]);
  keys[i] = bad ? ~static_cast<u64>(0) : static_cast<u64>(at.at[1] + to * axis_step);
  order[i] = i;
}

// Adds the updates of equal keys, in order. A thread per sorted update and element of the rows that
// move as a whole (`rows`: out, updates); whose key is that of its neighbour has nothing to do.
template <class T>
__global__ void __launch_bounds__(256)
    scatter_sum(T* out, const T* updates, const u64* keys, const i64* order, Geometry<1> g,
                Geometry<2> rows) {
  const i64 position = position_in_grid<i64>();
  const i64 first = position / rows.count;
  if (first >= g.count) return;
  const u64 key = keys[first];
  if (key == ~static_cast<u64>(0) || (first > 0 && keys[first - 1] == key)) return;
  const Offsets<2, i64> at(rows, position - first * rows.count);
  T* target = out + key + at.at[0];
  // Sums of parts: many small numbers would not change one large sum.
  constexpr i64 kPart = 256;
  Compute<T> sum = widen(*target);
  for (i64 i = first; i < g.count && keys[i] == key;) {
    const i64 end = i + kPart < g.count ? i + kPart : g.count;
    Compute<T> part = 0;
    for (; i < end && keys[i] == key; ++i) {
      const Offsets<1, i64> from(g, order[i]);
      part += widen(updates[from.at[0] + at.at[1]]);
    }
    sum += part;
  }
  *target = cast<T>(sum);
}

// Notes the first integer outside [low, high), unless it is `kept` (and there is such a number).
template <class I>
__global__ void __launch_bounds__(256) check_range(const I* x, Geometry<1> g, i64 low, i64 high,
                                                   i64 keeps, i64 kept, u64* errors, i64 ticket) {
  const i64 i = position_in_grid<i64>();
  if (i >= g.count) return;
  const i64 value = static_cast<i64>(x[Offsets<1, i64>(g, i).at[0]]);
  if ((value < low || value >= high) && !(keeps && value == kept)) report(errors, ticket, i);
}

// Notes the first number that is not whole.
template <class T>
__global__ void __launch_bounds__(256)
    check_whole(const T* x, Geometry<1> g, u64* errors, i64 ticket) {
  const i64 i = position_in_grid<i64>();
  if (i >= g.count) return;
  const Compute<T> value = widen(x[Offsets<1, i64>(g, i).at[0]]);
  if (value != math::trunc(value)) report(errors, ticket, i);
}
