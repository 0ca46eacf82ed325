// Recurrent layers: what their forward and backward passes share. The rows of a batch never meet,
// so either each thread takes some rows through all steps, or, where the weights are too large for
// that, each thread takes some units of every row, step by step. Both give the same bits.
#pragma once
#include <cstring>

#include "base/axes.h"
#include "isa/exponential.h"
#include "gemm/pack.h"
#include "gemm/tile.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {

constexpr int64_t kPanelVectors = kWideRows > 0 ? kWideVectors : kTileVectors;
constexpr int64_t kPanelRows = kWideRows > 0 ? kWideRows : kTileRows;
constexpr int kMostGates = 4;

// Columns of w_hh, and where their products go among the gates of a row.
struct Piece {
  int64_t weight, gate, width;
};

struct Recurrence {
  int32_t cell;
  bool reverse, by_units;
  int64_t steps, batch, hidden;
  int64_t inputs, gates, weights;  // columns for each unit: of x w_ih, of what is kept, of w_hh
  int64_t panel;                   // elements of a thread's packed weights
  int team;

  int64_t input_row() const { return inputs * hidden; }
  int64_t gate_row() const { return gates * hidden; }
  int64_t time(int64_t step) const { return reverse ? steps - 1 - step : step; }
};

// A thread's share of n, in units of `unit`.
inline Interval share_of(int64_t n, int64_t unit, int share, int team) {
  const int64_t units = parts(n, unit);
  return {least(n, units * share / team * unit), least(n, units * (share + 1) / team * unit)};
}

// Gates whose products lie as their weights do are one piece, if all units are taken; GRU's last
// one lies apart. Returns the number of pieces.
inline int pieces_of(const Recurrence& r, Interval units, Piece (&pieces)[kMostGates]) {
  const int64_t h = r.hidden;
  const bool gru = r.gates != r.weights;
  if (units.size() == h) {
    const int64_t joined = gru ? r.weights - 1 : r.weights;
    pieces[0] = {0, 0, joined * h};
    if (gru) pieces[1] = {joined * h, r.weights * h, h};
    return gru ? 2 : 1;
  }
  for (int64_t q = 0; q < r.weights; ++q) {
    const int64_t gate = gru && q == r.weights - 1 ? q + 1 : q;
    pieces[q] = {q * h + units.begin, gate * h + units.begin, units.size()};
  }
  return static_cast<int>(r.weights);
}

// Rows of `k` elements of `columns` columns, panel by panel.
template <class T>
int64_t packed_size(int64_t columns, int64_t k) {
  return round_up(columns, kLanes<T>) * k;
}

// w[p * step + j * column] of j < columns, p < k.
template <class T>
void pack_weights(T* out, const T* w, int64_t columns, int64_t column, int64_t k, int64_t step) {
  constexpr int64_t kWidth = kPanelVectors * kLanes<T>;
  for (int64_t j = 0; j < columns; j += kWidth) {
    const int64_t width = least(kWidth, columns - j), pitch = round_up(width, kLanes<T>);
    pack_panel(out + j * k, pitch, w + j * column, width, column, k, step);
  }
}

// c += a times packed weights.
template <class T>
void add_product(T* c, int64_t c_row, int64_t rows, int64_t columns, int64_t k, const T* a,
                 int64_t a_row, const T* panels) {
  constexpr int64_t kWidth = kPanelVectors * kLanes<T>;
  for (int64_t j = 0; j < columns; j += kWidth) {
    const int64_t width = least(kWidth, columns - j), vectors = parts(width, kLanes<T>);
    const int64_t most_rows = vectors > kTileVectors ? kPanelRows : kTileRows;
    for (int64_t i = 0, height; i < rows; i += height) {
      height = tile_height(rows - i, most_rows);
      Tile<T> t{};
      t.k = k;
      t.a = a + i * a_row;
      t.a_row = a_row;
      t.a_step = 1;
      t.b = panels + j * k;
      t.b_step = vectors * kLanes<T>;
      t.c = c + i * c_row + j;
      t.c_row = c_row;
      t.width = width;
      t.add = true;
      t.padded = true;
      t.pace = kPace;
      shared_tile<T>(height, vectors)(t);
    }
  }
}

// ---- functions of whole vectors ---------------------------------------------------------------

template <class V>
inline V sigmoid_of(const V& x) {
  using A = std::decay_t<decltype(x[0])>;
  return A(1) / (A(1) + exponential(-x));
}

// By exp(-2 |x|) - 1, which keeps its digits near 0.
template <class V>
inline V tanh_of(const V& x) {
  using A = std::decay_t<decltype(x[0])>;
  using E = math::Exponential<A>;
  using Bits = Vector<math::Int<A>>;
  constexpr A kEnd = 2 * (math::kMantissa<A> + 1);  // -1 from there on
  const Bits sign = (Bits)x & (Bits)splat(A(-0.0));
  const V z = larger(splat(-kEnd), A(-2) * (V)((Bits)x ^ sign));
  const V shifted = z * math::kLog2E<A> + math::kRounder<A>;
  const V n = shifted - math::kRounder<A>, r = (z - n * E::kLn2High) - n * E::kLn2Low;
  const V rest = math::polynomial(E::kExp, r) * r * r + r;
  const V power = scaled(splat(A(1)), shifted);
  const V minus = rest * power + (power - A(1));
  return (V)((Bits)(-minus / (A(2) + minus)) | sign);
}

// ---- plans --------------------------------------------------------------------------------------

// Rows by thread, if each gets enough of them and the weights leave room in a second cache.
template <class T>
const char* plan_recurrence(Plan* plan, int32_t cell, bool reverse, const Operand& gates,
                            int64_t hidden) {
  constexpr int64_t kFewRows = 4;
  static constexpr int64_t kInputs[] = {1, 1, 3, 4}, kKept[] = {1, 1, 4, 4};
  if (gates.ndim != 3) return "recurrent layers: gates are [steps, batch, gates * hidden]";
  Recurrence& r = state_of<Recurrence>(plan);
  r.cell = cell;
  r.reverse = reverse;
  r.steps = gates.shape[0];
  r.batch = gates.shape[1];
  r.hidden = hidden;
  r.inputs = r.weights = kInputs[cell];
  r.gates = kKept[cell];
  const int64_t item = sizeof(T);
  const int64_t weights = product({r.weights, hidden, hidden});
  const int64_t work = product({r.steps, r.batch, weights});
  r.team = work < 8 * kSerial ? 1 : threads();
  r.by_units = r.team > 1 &&
               (r.batch < kFewRows * r.team || product({weights, item, 2}) > second_cache_bytes());
  if (r.by_units) r.team = static_cast<int>(least(r.team, parts(hidden, kLanes<T>)));
  // Each thread's units are rounded up to whole vectors, of each gate.
  r.panel = product({round_up(r.by_units ? parts(hidden, r.team) + kLanes<T> : hidden, kLanes<T>),
                     r.weights, hidden});
  plan->workspace = product({r.by_units ? r.team : 1, r.panel, item});
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
