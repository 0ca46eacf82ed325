// Which results meet which taps: the geometry of a direct convolution without its padding.
//
// Along each axis the results are cut into stretches whose results all meet the same taps: those
// in the middle meet all of them, those at the border fewer. So taps on padding are never computed,
// and going back through a stride (the gradient of the input) is no different: there neighbours
// `stride` apart belong together.
#pragma once
#include "conv/conv.h"

namespace needle::NEEDLE_ISA {

struct Stretch {
  int64_t first, step, count;  // results
  int64_t from, from_step,
      from_tap;                 // source of the first one at its first tap; per result; per tap
  int64_t tap, tap_step, taps;  // positions in the packed weights
};

// One axis as a direction sees it.
struct AxisGeometry {
  int64_t results, sources, kernel, stride, dilation, low;
  bool back;  // results are the convolution's inputs; taps are then numbered from the last one
};

// The axes of a geometry; returns how many results they have together, at least as many as
// stretches.
inline int64_t read_axes(const Geometry& g, bool back, AxisGeometry* axes) {
  int64_t results = 0;
  for (int i = 0; i < kSpatial; ++i) {
    axes[i] = {back ? g.in[i] : g.out[i],
               back ? g.out[i] : g.in[i],
               g.kernel[i],
               g.stride[i],
               g.dilation[i],
               g.low[i],
               back};
    results += axes[i].results;
  }
  return results;
}

// Result i at tap position t reads the source that this returns; negative: none.
inline int64_t source_of(const AxisGeometry& a, int64_t i, int64_t t) {
  if (!a.back) {
    const int64_t from = i * a.stride + t * a.dilation - a.low;
    return from < a.sources ? from : -1;
  }
  const int64_t from = i + a.low - (a.kernel - 1 - t) * a.dilation;
  return from >= 0 && from % a.stride == 0 && from / a.stride < a.sources ? from / a.stride : -1;
}

inline Stretch single(const AxisGeometry& a, int64_t i) {
  Stretch s = {i, 1, 1, 0, a.back ? 1 : a.stride, 0, 0, 0, 0};
  for (int64_t t = 0; t < a.kernel; ++t) {
    const int64_t from = source_of(a, i, t);
    if (from < 0) continue;
    if (s.taps == 0) s.from = from, s.tap = t;
    if (s.taps == 1) s.from_tap = from - s.from, s.tap_step = t - s.tap;
    ++s.taps;
  }
  return s;
}

// Writes the stretches of an axis, at most as many as it has results; returns their number.
inline int64_t stretches_of(const AxisGeometry& a, Stretch* out) {
  int64_t count = 0;
  const int64_t step = a.back ? a.stride : 1;
  for (int64_t residue = 0; residue < step && residue < a.results; ++residue) {
    for (int64_t i = residue; i < a.results; i += step) {
      const Stretch next = single(a, i);
      Stretch* last = count ? &out[count - 1] : nullptr;
      if (last && i != residue && next.taps == last->taps &&
          (next.taps == 0 || (next.tap == last->tap && next.tap_step == last->tap_step &&
                              next.from == last->from + last->count * last->from_step))) {
        ++last->count;
        last->step = step;
      } else {
        out[count++] = next;
      }
    }
  }
  return count;
}

}  // namespace needle::NEEDLE_ISA
