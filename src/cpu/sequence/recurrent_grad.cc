// The backward pass of recurrent layers: from the last step to the first, the product with the
// transposed recurrent weights and the gradients of the gates. What becomes of these, the gradients
// of the weights and of the inputs, are plain products over all steps.
#include "base/table.h"
#include "sequence/recurrent.h"

namespace needle::NEEDLE_ISA {
namespace {

template <class T>
struct Backward {
  const Recurrence& r;
  T *dgates, *dh, *dc;  // dh, dc: of the state before the step that was last visited
  const T *g_out, *g_h, *g_c, *out, *gates, *cells, *h0, *c0, *w_hh;
  const int64_t* lengths;

  bool is_active(int64_t row, int64_t time) const { return !lengths || time < lengths[row]; }
  bool is_first(int64_t row, int64_t time) const {
    return r.reverse ? time == (lengths ? lengths[row] : r.steps) - 1 : time == 0;
  }
  // What the step at `time` began with.
  const T* before(const T* all, const T* start, int64_t row, int64_t time) const {
    const int64_t earlier = r.reverse ? time + 1 : time - 1;
    return is_first(row, time) ? start + row * r.hidden
                               : all + (earlier * r.batch + row) * r.hidden;
  }
};

// The gradient that arrives at a row's new state: `upstream` is null where there is none.
template <class T, class Part>
inline Vector<T> arriving(const T* upstream, const T* dh, int64_t j, const Part& part) {
  return upstream ? part.load(upstream + j) + part.load(dh + j) : part.load(dh + j);
}

template <class T>
void lstm_row_grad(int64_t h, T* dg, T* dh, T* dc, const T* g, const T* gates, const T* cell,
                   const T* cell_before, Interval units) {
  for_vectors<T>(units.size(), [&](int64_t i, const auto& part) {
    const int64_t j = units.begin + i;
    const auto in = part.load(gates + j), forget = part.load(gates + h + j);
    const auto change = part.load(gates + 2 * h + j), open = part.load(gates + 3 * h + j);
    const auto squashed = tanh_of(part.load(cell + j));
    const auto d = arriving(g, dh, j, part);
    const auto d_cell = part.load(dc + j) + d * open * (T(1) - squashed * squashed);
    part.store(dg + j, d_cell * change * in * (T(1) - in));
    part.store(dg + h + j, d_cell * part.load(cell_before + j) * forget * (T(1) - forget));
    part.store(dg + 2 * h + j, d_cell * in * (T(1) - change * change));
    part.store(dg + 3 * h + j, d * squashed * open * (T(1) - open));
    part.store(dc + j, d_cell * forget);
    part.store(dh + j, Vector<T>{});
  });
}

template <class T>
void gru_row_grad(int64_t h, T* dg, T* dh, const T* g, const T* gates, const T* state_before,
                  Interval units) {
  for_vectors<T>(units.size(), [&](int64_t i, const auto& part) {
    const int64_t j = units.begin + i;
    const auto reset = part.load(gates + j), update = part.load(gates + h + j);
    const auto fresh = part.load(gates + 2 * h + j), recurrent = part.load(gates + 3 * h + j);
    const auto d = arriving(g, dh, j, part);
    const auto d_fresh = d * (T(1) - update) * (T(1) - fresh * fresh);
    part.store(dg + j, d_fresh * recurrent * reset * (T(1) - reset));
    part.store(dg + h + j, d * (part.load(state_before + j) - fresh) * update * (T(1) - update));
    part.store(dg + 2 * h + j, d_fresh);
    part.store(dg + 3 * h + j, d_fresh * reset);
    part.store(dh + j, d * update);
  });
}

template <class T>
void simple_row_grad(bool is_tanh, T* dg, T* dh, const T* g, const T* gates, Interval units) {
  for_vectors<T>(units.size(), [&](int64_t i, const auto& part) {
    const int64_t j = units.begin + i;
    const auto y = part.load(gates + j), d = arriving(g, dh, j, part);
    const Vector<T> slope = is_tanh ? T(1) - y * y : y > 0 ? splat(T(1)) : Vector<T>{};
    part.store(dg + j, d * slope);
    part.store(dh + j, Vector<T>{});
  });
}

// The gradients of a step's gates become those of the state before it.
template <class T>
void add_recurrent(const Backward<T>& b, int64_t time, Interval rows, Interval units,
                   const T* panels) {
  const Recurrence& r = b.r;
  Piece pieces[kMostGates];
  const int n = pieces_of(r, {0, r.hidden}, pieces);
  for (int p = 0; p < n; ++p) {
    const auto& [weight, gate, width] = pieces[p];
    add_product(b.dh + rows.begin * r.hidden + units.begin, r.hidden, rows.size(), units.size(),
                width, b.dgates + (time * r.batch + rows.begin) * r.gate_row() + gate, r.gate_row(),
                panels);
    panels += packed_size<T>(units.size(), width);
  }
}

template <class T>
void gate_grads(const Backward<T>& b, int64_t time, Interval rows, Interval units) {
  const Recurrence& r = b.r;
  const int64_t h = r.hidden;
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const int64_t place = time * r.batch + i;
    T* dg = b.dgates + place * r.gate_row();
    if (!b.is_active(i, time)) {
      for (int64_t q = 0; q < r.gates; ++q)
        std::memset(dg + q * h + units.begin, 0, units.size() * sizeof(T));
      continue;
    }
    T* dh = b.dh + i * h;
    const T *g = b.g_out ? b.g_out + place * h : nullptr, *gates = b.gates + place * r.gate_row();
    if (r.cell == kLstmCell)
      lstm_row_grad(h, dg, dh, b.dc + i * h, g, gates, b.cells + place * h,
                    b.before(b.cells, b.c0, i, time), units);
    else if (r.cell == kGruCell)
      gru_row_grad(h, dg, dh, g, gates, b.before(b.out, b.h0, i, time), units);
    else
      simple_row_grad(r.cell == kTanhCell, dg, dh, g, gates, units);
  }
}

// Steps are visited from the last one; -1: what follows the first one's gates.
template <class T>
void backward_step(const Backward<T>& b, int64_t step, Interval rows, Interval units,
                   const T* panels) {
  if (step + 1 < b.r.steps) add_recurrent(b, b.r.time(step + 1), rows, units, panels);
  if (step >= 0) gate_grads(b, b.r.time(step), rows, units);
}

template <class T>
void pack_transposed_share(const Recurrence& r, const T* w_hh, Interval units, T* panels) {
  const int64_t row = r.weights * r.hidden;
  Piece pieces[kMostGates];
  const int n = pieces_of(r, {0, r.hidden}, pieces);
  for (int p = 0; p < n; ++p) {
    pack_weights(panels, w_hh + units.begin * row + pieces[p].weight, units.size(), row,
                 pieces[p].width, 1);
    panels += packed_size<T>(units.size(), pieces[p].width);
  }
}

template <class T>
void start(T* state, const T* gradient, int64_t n) {
  if (gradient)
    std::memcpy(state, gradient, n * sizeof(T));
  else
    std::memset(state, 0, n * sizeof(T));
}

template <class T>
int64_t run_recurrent_grad(const Plan* plan, void* const* buffers, void* workspace) {
  const Recurrence& r = state_of<Recurrence>(plan);
  T* panels = as<T>(workspace);
  const Backward<T> b{r,
                      as<T>(buffers[0]),
                      as<T>(buffers[1]),
                      as<T>(buffers[2]),
                      as<T>(buffers[3]),
                      as<T>(buffers[4]),
                      as<T>(buffers[5]),
                      as<T>(buffers[6]),
                      as<T>(buffers[7]),
                      as<T>(buffers[8]),
                      as<T>(buffers[9]),
                      as<T>(buffers[10]),
                      as<T>(buffers[11]),
                      as<int64_t>(buffers[12])};
  const Interval all_rows{0, r.batch}, all_units{0, r.hidden};
  start(b.dh, b.g_h, r.batch * r.hidden);
  if (b.dc) start(b.dc, b.g_c, r.batch * r.hidden);
  if (!r.by_units) {
    pack_transposed_share(r, b.w_hh, all_units, panels);
    parallel(r.team, [&](int share) {
      const Interval rows = share_of(r.batch, 1, share, r.team);
      for (int64_t step = r.steps - 1; rows.size() > 0 && step >= -1; --step)
        backward_step(b, step, rows, all_units, panels);
    });
    return -1;
  }
  const auto units_of = [&](int share) { return share_of(r.hidden, kLanes<T>, share, r.team); };
  parallel(r.team, [&](int share) {
    pack_transposed_share(r, b.w_hh, units_of(share), panels + share * r.panel);
  });
  for (int64_t step = r.steps - 1; step >= -1; --step)
    parallel(r.team, [&](int share) {
      backward_step(b, step, all_rows, units_of(share), panels + share * r.panel);
    });
  return -1;
}

}  // namespace

const char* plan_recurrent_grad(Plan* plan, int32_t cell, bool reverse, const Operand& gates,
                                int64_t hidden) {
  const bool is_double = gates.dtype == kFloat64;
  if (!is_double && gates.dtype != kFloat32) return "recurrent layers: float32 or float64";
  const char* refused = is_double ? plan_recurrence<double>(plan, cell, reverse, gates, hidden)
                                  : plan_recurrence<float>(plan, cell, reverse, gates, hidden);
  if (!refused) plan->run = is_double ? run_recurrent_grad<double> : run_recurrent_grad<float>;
  return refused;
}

}  // namespace needle::NEEDLE_ISA
