// The forward pass of recurrent layers: for each step one product with the recurrent weights, and
// the gates while it is in the cache.
#include "base/table.h"
#include "sequence/recurrent.h"

namespace needle::NEEDLE_ISA {
namespace {

template <class T>
struct Forward {
  const Recurrence& r;
  T *out, *last_h, *last_c;
  const T* inputs;
  T *gates, *cells;
  const T *h0, *c0, *w_hh, *bias;
  const int64_t* lengths;
  T* state;  // of each row, where rows end at different times

  bool is_active(int64_t row, int64_t time) const { return !lengths || time < lengths[row]; }
  bool is_first(int64_t row, int64_t time) const {
    return r.reverse ? time == (lengths ? lengths[row] : r.steps) - 1 : time == 0;
  }
  int64_t before(int64_t time) const { return r.reverse ? time + 1 : time - 1; }
};

template <class T>
void lstm_row(const Forward<T>& f, T* gates, const T* cell, T* new_cell, T* out, Interval units) {
  const int64_t h = f.r.hidden, u = units.begin;
  for_vectors<T>(units.size(), [&](int64_t j, const auto& part) {
    const auto gate = [&](int q) {
      return part.load(gates + q * h + u + j) + part.load(f.bias + q * h + u + j);
    };
    const auto in = sigmoid_of(gate(0)), forget = sigmoid_of(gate(1));
    const auto change = tanh_of(gate(2)), open = sigmoid_of(gate(3));
    const auto c = forget * part.load(cell + u + j) + in * change;
    part.store(gates + u + j, in);
    part.store(gates + h + u + j, forget);
    part.store(gates + 2 * h + u + j, change);
    part.store(gates + 3 * h + u + j, open);
    part.store(new_cell + u + j, c);
    part.store(out + u + j, open * tanh_of(c));
  });
}

template <class T>
void gru_row(const Forward<T>& f, T* gates, const T* state, T* out, Interval units) {
  const int64_t h = f.r.hidden, u = units.begin;
  for_vectors<T>(units.size(), [&](int64_t j, const auto& part) {
    const auto gate = [&](int q) {
      return part.load(gates + q * h + u + j) + part.load(f.bias + q * h + u + j);
    };
    const auto reset = sigmoid_of(gate(0)), update = sigmoid_of(gate(1)), recurrent = gate(3);
    const auto fresh = tanh_of(gate(2) + reset * recurrent);
    part.store(gates + u + j, reset);
    part.store(gates + h + u + j, update);
    part.store(gates + 2 * h + u + j, fresh);
    part.store(gates + 3 * h + u + j, recurrent);
    part.store(out + u + j, fresh + update * (part.load(state + u + j) - fresh));
  });
}

template <class T>
void simple_row(const Forward<T>& f, T* gates, T* out, Interval units) {
  const int64_t u = units.begin;
  for_vectors<T>(units.size(), [&](int64_t j, const auto& part) {
    const auto x = part.load(gates + u + j) + part.load(f.bias + u + j);
    const auto y = f.r.cell == kTanhCell ? tanh_of(x) : x < T(0) ? Vector<T>{} : x;
    part.store(gates + u + j, y);
    part.store(out + u + j, y);
  });
}

// A row that has ended.
template <class T>
void rest_row(const Forward<T>& f, int64_t place, Interval units) {
  const size_t bytes = units.size() * sizeof(T);
  const int64_t h = f.r.hidden;
  std::memset(f.out + place * h + units.begin, 0, bytes);
  for (int64_t q = 0; q < f.r.gates; ++q)
    std::memset(f.gates + place * f.r.gate_row() + q * h + units.begin, 0, bytes);
  if (f.cells) std::memset(f.cells + place * h + units.begin, 0, bytes);
}

// Lays x w_ih of some units where the gates will be, unless they lie there.
template <class T>
void place_inputs(const Forward<T>& f, int64_t place, Interval units) {
  const int64_t h = f.r.hidden;
  const size_t bytes = units.size() * sizeof(T);
  if (f.inputs == f.gates) return;
  for (int64_t q = 0; q < f.r.inputs; ++q)
    std::memcpy(f.gates + place * f.r.gate_row() + q * h + units.begin,
                f.inputs + place * f.r.input_row() + q * h + units.begin, bytes);
  for (int64_t q = f.r.inputs; q < f.r.gates; ++q)
    std::memset(f.gates + place * f.r.gate_row() + q * h + units.begin, 0, bytes);
}

template <class T>
void forward_step(const Forward<T>& f, int64_t step, Interval rows, Interval units,
                  const T* panels) {
  const Recurrence& r = f.r;
  const int64_t h = r.hidden, time = r.time(step), first = time * r.batch;
  const T* before = step == 0 ? f.h0 : f.out + f.before(time) * r.batch * h;
  if (f.lengths) before = f.state;
  for (int64_t i = rows.begin; i < rows.end; ++i) place_inputs(f, first + i, units);
  Piece pieces[kMostGates];
  const int n = pieces_of(r, units, pieces);
  for (int p = 0; p < n; ++p) {
    const auto& [weight, gate, width] = pieces[p];
    add_product(f.gates + (first + rows.begin) * r.gate_row() + gate, r.gate_row(), rows.size(),
                width, h, before + rows.begin * h, h, panels);
    panels += packed_size<T>(width, h);
  }
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const int64_t place = first + i;
    if (!f.is_active(i, time)) {
      rest_row(f, place, units);
      continue;
    }
    T *gates = f.gates + place * r.gate_row(), *out = f.out + place * h;
    if (r.cell == kLstmCell) {
      const T* cell =
          f.is_first(i, time) ? f.c0 + i * h : f.cells + (f.before(time) * r.batch + i) * h;
      lstm_row(f, gates, cell, f.cells + place * h, out, units);
    } else if (r.cell == kGruCell) {
      gru_row(f, gates, before + i * h, out, units);
    } else {
      simple_row(f, gates, out, units);
    }
  }
}

// What the rows that have not ended are now; other threads still read what they were before.
template <class T>
void keep_state(const Forward<T>& f, int64_t step, Interval rows) {
  const int64_t h = f.r.hidden, time = f.r.time(step);
  for (int64_t i = rows.begin; f.lengths && i < rows.end; ++i)
    if (f.is_active(i, time))
      std::memcpy(f.state + i * h, f.out + (time * f.r.batch + i) * h, h * sizeof(T));
}

template <class T>
void write_last(const Forward<T>& f) {
  const Recurrence& r = f.r;
  const int64_t h = r.hidden;
  for (int64_t i = 0; i < r.batch; ++i) {
    const int64_t length = f.lengths ? f.lengths[i] : r.steps;
    const int64_t place = (r.reverse ? 0 : length - 1) * r.batch + i;
    const T* state = length == 0 ? f.h0 + i * h : f.out + place * h;
    std::memcpy(f.last_h + i * h, state, h * sizeof(T));
    if (!f.last_c) continue;
    const T* cell = length == 0 ? f.c0 + i * h : f.cells + place * h;
    std::memcpy(f.last_c + i * h, cell, h * sizeof(T));
  }
}

template <class T>
void pack_share(const Recurrence& r, const T* w_hh, Interval units, T* panels) {
  Piece pieces[kMostGates];
  const int n = pieces_of(r, units, pieces);
  for (int p = 0; p < n; ++p) {
    pack_weights(panels, w_hh + pieces[p].weight, pieces[p].width, 1, r.hidden,
                 r.weights * r.hidden);
    panels += packed_size<T>(pieces[p].width, r.hidden);
  }
}

template <class T>
int64_t run_recurrent(const Plan* plan, void* const* buffers, void* workspace) {
  const Recurrence& r = state_of<Recurrence>(plan);
  T* panels = as<T>(workspace);
  const Forward<T> f{r,
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
                     as<int64_t>(buffers[10]),
                     panels + (r.by_units ? r.team : 1) * r.panel};
  const Interval all_rows{0, r.batch}, all_units{0, r.hidden};
  if (f.lengths) std::memcpy(f.state, f.h0, r.batch * r.hidden * sizeof(T));
  if (!r.by_units) {
    pack_share(r, f.w_hh, all_units, panels);
    parallel(r.team, [&](int share) {
      const Interval rows = share_of(r.batch, 1, share, r.team);
      for (int64_t step = 0; rows.size() > 0 && step < r.steps; ++step) {
        forward_step(f, step, rows, all_units, panels);
        keep_state(f, step, rows);
      }
    });
  } else {
    const auto units_of = [&](int share) { return share_of(r.hidden, kLanes<T>, share, r.team); };
    parallel(r.team,
             [&](int share) { pack_share(r, f.w_hh, units_of(share), panels + share * r.panel); });
    for (int64_t step = 0; step < r.steps; ++step) {
      parallel(r.team, [&](int share) {
        forward_step(f, step, all_rows, units_of(share), panels + share * r.panel);
      });
      keep_state(f, step, all_rows);
    }
  }
  write_last(f);
  return -1;
}

}  // namespace

const char* plan_recurrent(Plan* plan, int32_t cell, bool reverse, const Operand& gates,
                           int64_t hidden) {
  const bool is_double = gates.dtype == kFloat64;
  if (!is_double && gates.dtype != kFloat32) return "recurrent layers: float32 or float64";
  const char* refused = is_double ? plan_recurrence<double>(plan, cell, reverse, gates, hidden)
                                  : plan_recurrence<float>(plan, cell, reverse, gates, hidden);
  if (refused) return refused;
  plan->run = is_double ? run_recurrent<double> : run_recurrent<float>;
  const Recurrence& r = state_of<Recurrence>(plan);
  plan->workspace += product({r.batch, hidden, kItemSize[gates.dtype]});
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
