// Recurrent layers and attention, called by backend/sequence.py.
#include <algorithm>
#include <nanobind/stl/string_view.h>

#include "bind/calls.h"

namespace needle {
namespace {

constexpr std::string_view kCellNames[kCells] = {"tanh", "relu", "gru", "lstm"};

// The kernels trust the shapes they are given.
void check_shape(const Array* x, DType dtype, std::initializer_list<int64_t> shape,
                 const char* name) {
  if (!x) return;
  const Spec* spec = x->spec;
  if (spec->code == dtype && spec->ndim == static_cast<int>(shape.size()) &&
      std::equal(shape.begin(), shape.end(), spec->shape))
    return;
  throw nb::value_error((std::string(name) + ": unexpected shape or dtype, " + text_of(x)).c_str());
}

void check_dense_shape(const Array* x, DType dtype, std::initializer_list<int64_t> shape,
                       const char* name) {
  check_shape(x, dtype, shape, name);
  if (x) check_dense(x, name);
}

// ---- recurrent layers

struct Layer {
  int32_t cell;
  DType dtype;
  int64_t steps, batch, hidden, row;  // row: elements of the gates of a step

  Layer(std::string_view name, const Array* gates, const Array* h0) {
    cell = static_cast<int32_t>(std::find(kCellNames, kCellNames + kCells, name) - kCellNames);
    if (cell == kCells) throw nb::value_error("recurrent: expected tanh, relu, gru or lstm");
    dtype = gates->spec->code;
    if (gates->spec->ndim != 3 || h0->spec->ndim != 2)
      throw nb::value_error("recurrent: expected gates of 3 axes and a state of 2");
    steps = gates->spec->shape[0];
    batch = gates->spec->shape[1];
    hidden = h0->spec->shape[1];
    row = (cell == kGruCell || cell == kLstmCell ? 4 : 1) * hidden;
    check_dense_shape(gates, dtype, {steps, batch, row}, "gates");
  }

  int64_t weights() const { return cell == kGruCell ? 3 * hidden : row; }
  void state(const Array* x, const char* name) const {
    check_dense_shape(x, dtype, {batch, hidden}, name);
  }
  void sequence(const Array* x, const char* name) const {
    check_dense_shape(x, dtype, {steps, batch, hidden}, name);
  }
  // Not longer than the sequence.
  void lengths(const Array* x) const {
    check_dense_shape(x, kInt64, {batch}, "lengths");
    Plan plan;
    if (!x) return;
    check(kernels->plan_check_range(&plan, operand(x), 0, steps + 1, 0), "lengths", x);
    if (run(plan, {x}, kChecked) >= 0) throw nb::value_error("lengths: out of range");
  }
};

void recurrent(std::string_view name, bool reverse, nb::list outs, nb::list ins) {
  if (outs.size() != 5 || ins.size() != 6) throw nb::value_error("recurrent: 5 results, 6 inputs");
  const Array *out = native(outs[0]), *last_h = native(outs[1]), *last_c = native_or_null(outs[2]);
  const Array *gates = native(outs[3]), *cells = native_or_null(outs[4]);
  const Array *inputs = native(ins[0]), *h0 = native(ins[1]), *c0 = native_or_null(ins[2]);
  const Array *w_hh = native(ins[3]), *bias = native(ins[4]), *lengths = native_or_null(ins[5]);
  const Layer layer(name, gates, h0);
  if (layer.cell == kLstmCell && (!last_c || !cells || !c0))
    throw nb::value_error("recurrent: an LSTM has cells");
  layer.sequence(out, "out");
  layer.sequence(cells, "cells");
  for (const Array* x : {last_h, last_c, h0, c0}) layer.state(x, "state");
  check_dense_shape(inputs, layer.dtype, {layer.steps, layer.batch, layer.weights()}, "inputs");
  check_dense_shape(w_hh, layer.dtype, {layer.hidden, layer.weights()}, "w_hh");
  check_dense_shape(bias, layer.dtype, {layer.row}, "bias");
  layer.lengths(lengths);
  Plan plan;
  check(kernels->plan_recurrent(&plan, layer.cell, reverse, operand(gates), layer.hidden),
        "recurrent", gates);
  run(plan, {out, last_h, last_c, inputs, gates, cells, h0, c0, w_hh, bias, lengths});
}

void recurrent_grad(std::string_view name, bool reverse, nb::list outs, nb::list ins) {
  if (outs.size() != 3 || ins.size() != 10)
    throw nb::value_error("recurrent_grad: 3 results, 10 inputs");
  const Array *dgates = native(outs[0]), *dh0 = native(outs[1]), *dc0 = native_or_null(outs[2]);
  const Array *g_out = native_or_null(ins[0]), *g_h = native_or_null(ins[1]);
  const Array *g_c = native_or_null(ins[2]), *out = native(ins[3]), *gates = native(ins[4]);
  const Array *cells = native_or_null(ins[5]), *h0 = native(ins[6]), *c0 = native_or_null(ins[7]);
  const Array *w_hh = native(ins[8]), *lengths = native_or_null(ins[9]);
  const Layer layer(name, gates, h0);
  if (layer.cell == kLstmCell && (!dc0 || !cells || !c0))
    throw nb::value_error("recurrent_grad: an LSTM has cells");
  check_dense_shape(dgates, layer.dtype, {layer.steps, layer.batch, layer.row}, "dgates");
  for (const Array* x : {g_out, out, cells}) layer.sequence(x, "a sequence");
  for (const Array* x : {dh0, dc0, g_h, g_c, h0, c0}) layer.state(x, "state");
  check_dense_shape(w_hh, layer.dtype, {layer.hidden, layer.weights()}, "w_hh");
  layer.lengths(lengths);
  Plan plan;
  check(kernels->plan_recurrent_grad(&plan, layer.cell, reverse, operand(gates), layer.hidden),
        "recurrent_grad", gates);
  run(plan, {dgates, dh0, dc0, g_out, g_h, g_c, out, gates, cells, h0, c0, w_hh, lengths});
}

// ---- attention

struct Heads {
  DType dtype;
  int64_t b, h, t, d, g, s, e;

  Heads(const Array* q, const Array* k, const Array* v) {
    for (const Array* x : {q, k, v})
      if (x->spec->ndim != 4) throw nb::value_error("attention: expected 4 axes");
    const int64_t *of_q = q->spec->shape, *of_k = k->spec->shape;
    dtype = q->spec->code;
    b = of_q[0], h = of_q[1], t = of_q[2], d = of_q[3];
    g = of_k[1], s = of_k[2], e = v->spec->shape[3];
    check_shape(k, dtype, {b, g, s, d}, "k");
    check_shape(v, dtype, {b, g, s, e}, "v");
    if (g == 0 || h % g != 0) throw nb::value_error("attention: heads are shared evenly");
  }

  void statistics(const Array* x) const { check_dense_shape(x, dtype, {b, h, t}, "statistics"); }
  void mask(const Array* x) const {
    if (x) check_shape(x, x->spec->code, {b, h, t, s}, "mask");
  }
  void lengths(const Array* x) const { check_dense_shape(x, kInt64, {b}, "lengths"); }
};

Operand operand_or_none(const Array* x) {
  return x ? operand(x) : Operand{kBool, 0, nullptr, nullptr};
}

// False: there is no kernel for these strides.
bool attention(nb::list outs, nb::list ins, double scale, bool causal) {
  if (outs.size() != 3 || ins.size() != 5) throw nb::value_error("attention: 3 results, 5 inputs");
  const Array *out = native(outs[0]), *shift = native(outs[1]), *rest = native(outs[2]);
  const Array *q = native(ins[0]), *k = native(ins[1]), *v = native(ins[2]);
  const Array *mask = native_or_null(ins[3]), *lengths = native_or_null(ins[4]);
  const Heads heads(q, k, v);
  check_shape(out, heads.dtype, {heads.b, heads.h, heads.t, heads.e}, "out");
  heads.statistics(shift);
  heads.statistics(rest);
  heads.mask(mask);
  heads.lengths(lengths);
  Plan plan;
  if (kernels->plan_attention(&plan, scale, causal, operand(out), operand(q), operand(k),
                              operand(v), operand_or_none(mask)))
    return false;
  run(plan, {out, shift, rest, q, k, v, mask, lengths});
  return true;
}

bool attention_grad(nb::list outs, nb::list ins, double scale, bool causal) {
  if (outs.size() != 3 || ins.size() != 9)
    throw nb::value_error("attention_grad: 3 results, 9 inputs");
  const Array *dq = native(outs[0]), *dk = native(outs[1]), *dv = native(outs[2]);
  const Array *g = native(ins[0]), *q = native(ins[1]), *k = native(ins[2]), *v = native(ins[3]);
  const Array *out = native(ins[4]), *shift = native(ins[5]), *rest = native(ins[6]);
  const Array *mask = native_or_null(ins[7]), *lengths = native_or_null(ins[8]);
  const Heads heads(q, k, v);
  check_shape(dq, heads.dtype, {heads.b, heads.h, heads.t, heads.d}, "dq");
  check_shape(dk, heads.dtype, {heads.b, heads.g, heads.s, heads.d}, "dk");
  check_shape(dv, heads.dtype, {heads.b, heads.g, heads.s, heads.e}, "dv");
  for (const Array* x : {g, out})
    check_shape(x, heads.dtype, {heads.b, heads.h, heads.t, heads.e}, "out");
  heads.statistics(shift);
  heads.statistics(rest);
  heads.mask(mask);
  heads.lengths(lengths);
  Plan plan;
  if (kernels->plan_attention_grad(&plan, scale, causal, operand(dq), operand(dk), operand(dv),
                                   operand(g), operand(q), operand(k), operand(v), operand(out),
                                   operand_or_none(mask)))
    return false;
  run(plan, {dq, dk, dv, g, q, k, v, out, shift, rest, mask, lengths});
  return true;
}

}  // namespace

void add_sequence_kernels(nb::module_& m) {
  m.def("recurrent", recurrent);
  m.def("recurrent_grad", recurrent_grad);
  m.def("attention", attention);
  m.def("attention_grad", attention_grad);
}

}  // namespace needle
