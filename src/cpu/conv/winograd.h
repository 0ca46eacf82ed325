// Winograd's minimal filtering on tiles of 6 x 6: F(4x4, 3x3) and F(2x2, 5x5).
//
// Correlating 6 inputs with r taps gives m = 7 - r outputs. As a product of polynomials, evaluated
// at six points, it is A' ((G w) * (B' x)): six multiplications instead of m * r. In two dimensions
// the transforms are applied to columns, then rows, and 36 multiplications take the place of
// (m * r)^2. The gradient of the weights is the same with outputs and taps exchanged.
//
// The points are 0, +a, -a, +b, -b and infinity. With a = 5/8, b = 3/2 results are about twice as
// exact as with the usual 1 and 2, for the same work, and all constants are exact in float32.
//
// Three taps at stride 2 are two sums: the inputs 0, 2, .. with the taps 0 and 2, which is a
// correlation, and the inputs 1, 3, .. with tap 1, which is none. Four outputs take five
// multiplications for the first, at the points +a, -a, +b, -b and infinity with a = 3/8, b = 5/4,
// and four for the second: in two dimensions 81 instead of 144. Tap 1 is one component of the
// weights, which meets four of the inputs: 36 components of the weights meet 81 of the inputs.
//
// Sources: Winograd, "Arithmetic Complexity of Computations", 1980; Lavin and Gray, "Fast
// Algorithms for Convolutional Neural Networks", 2016, arXiv:1509.09308; Barabasz et al., "Error
// Analysis and Improving the Accuracy of Winograd Convolution", 2020, arXiv:1803.10986.
#pragma once
#include "conv/conv.h"

// Loops over points, in full; with sanitizers that would compile for minutes.
#if defined(NEEDLE_SANITIZE)
#define NEEDLE_UNROLL
#else
#define NEEDLE_UNROLL _Pragma("GCC unroll 9")
#endif

namespace needle::NEEDLE_ISA {

constexpr int kTilePoints = 6;
constexpr int kComponents = kTilePoints * kTilePoints;  // of the weights
constexpr float kA = 0.625f, kA2 = kA * kA, kB = 1.5f, kB2 = kB * kB;
constexpr float kNear = 0.375f, kNear2 = kNear * kNear, kFar = 1.25f, kFar2 = kFar * kFar;

using Floats = Vector<float>;

// A transform makes kTo numbers of kFrom ones.

// B' x: six inputs.
struct TransformInput {
  static constexpr int kFrom = kTilePoints, kTo = kTilePoints;
  static void apply(const Floats (&x)[kFrom], Floats (&out)[kTo]) {
    out[0] = x[0] * (kA2 * kB2) - x[2] * (kA2 + kB2) + x[4];
    out[5] = x[1] * (kA2 * kB2) - x[3] * (kA2 + kB2) + x[5];
    const Floats even_a = x[4] - x[2] * kB2, odd_a = x[3] - x[1] * kB2;
    out[1] = even_a + odd_a * kA;
    out[2] = even_a - odd_a * kA;
    const Floats even_b = x[4] - x[2] * kA2, odd_b = x[3] - x[1] * kA2;
    out[3] = even_b + odd_b * kB;
    out[4] = even_b - odd_b * kB;
  }
};

// G w: `taps` weights.
template <int taps>
struct TransformTaps {
  static constexpr int kFrom = taps, kTo = kTilePoints;
  static void apply(const Floats (&w)[kFrom], Floats (&out)[kTo]) {
    constexpr float at_a = 1 / (2 * kA2 * (kA2 - kB2)), at_b = 1 / (2 * kB2 * (kB2 - kA2));
    Floats even_a = w[0] * at_a, odd_a = w[1] * (kA * at_a);
    Floats even_b = w[0] * at_b, odd_b = w[1] * (kB * at_b);
    if constexpr (taps > 2) even_a += w[2] * (kA2 * at_a), even_b += w[2] * (kB2 * at_b);
    if constexpr (taps > 3) odd_a += w[3] * (kA2 * kA * at_a), odd_b += w[3] * (kB2 * kB * at_b);
    if constexpr (taps > 4)
      even_a += w[4] * (kA2 * kA2 * at_a), even_b += w[4] * (kB2 * kB2 * at_b);
    out[0] = w[0] * (1 / (kA2 * kB2));
    out[1] = even_a + odd_a;
    out[2] = even_a - odd_a;
    out[3] = even_b + odd_b;
    out[4] = even_b - odd_b;
    out[5] = w[taps - 1];
  }
};

// A' of the six products.
template <int outputs>
struct TransformOutput {
  static constexpr int kFrom = kTilePoints, kTo = outputs;
  static void apply(const Floats (&x)[kFrom], Floats (&out)[kTo]) {
    const Floats even_a = x[1] + x[2], odd_a = x[1] - x[2];
    const Floats even_b = x[3] + x[4], odd_b = x[3] - x[4];
    out[0] = x[0] + even_a + even_b;
    out[1] = odd_a * kA + odd_b * kB;
    if constexpr (outputs > 2) out[2] = even_a * kA2 + even_b * kB2;
    if constexpr (outputs > 3) out[3] = odd_a * (kA2 * kA) + odd_b * (kB2 * kB);
    if constexpr (outputs > 4) out[4] = even_a * (kA2 * kA2) + even_b * (kB2 * kB2);
    out[outputs - 1] += x[5];
  }
};

// ---- stride 2

constexpr int kFive = 5;     // points of the correlation with taps 0 and 2
constexpr int kOutputs = 4;  // of a tile, at stride 2
constexpr int kStridedPoints = kFive + kOutputs;

// B' x of the correlation.
inline void evaluate_inputs(const Floats (&x)[kFive], Floats* out) {
  const Floats even_a = x[2] - x[0] * kFar2, odd_a = x[3] - x[1] * kFar2;
  const Floats even_b = x[2] - x[0] * kNear2, odd_b = x[3] - x[1] * kNear2;
  out[0] = odd_a + even_a * kNear;
  out[1] = odd_a - even_a * kNear;
  out[2] = odd_b + even_b * kFar;
  out[3] = odd_b - even_b * kFar;
  out[4] = x[0] * (kNear2 * kFar2) - x[2] * (kNear2 + kFar2) + x[4];
}

// G w of the correlation: two taps, or the four of its gradient.
template <int taps>
inline void evaluate_taps(const Floats (&w)[taps], Floats* out) {
  constexpr float at_a = 1 / (2 * kNear * (kNear2 - kFar2)),
                  at_b = 1 / (2 * kFar * (kFar2 - kNear2));
  Floats even_a = w[0] * at_a, odd_a = w[1] * (kNear * at_a);
  Floats even_b = w[0] * at_b, odd_b = w[1] * (kFar * at_b);
  if constexpr (taps > 2) {
    even_a += w[2] * (kNear2 * at_a), odd_a += w[3] * (kNear2 * kNear * at_a);
    even_b += w[2] * (kFar2 * at_b), odd_b += w[3] * (kFar2 * kFar * at_b);
  }
  out[0] = odd_a + even_a;
  out[1] = odd_a - even_a;
  out[2] = odd_b + even_b;
  out[3] = odd_b - even_b;
  out[4] = w[taps - 1];
}

// A' of the five products: four outputs, or the two of the gradient.
template <int outputs>
inline void interpolate(const Floats* x, Floats (&out)[outputs]) {
  const Floats even_a = x[0] + x[1], odd_a = x[0] - x[1];
  const Floats even_b = x[2] + x[3], odd_b = x[2] - x[3];
  out[0] = even_a + even_b;
  out[1] = odd_a * kNear + odd_b * kFar;
  if constexpr (outputs > 2) {
    out[2] = even_a * kNear2 + even_b * kFar2;
    out[3] = odd_a * (kNear2 * kNear) + odd_b * (kFar2 * kFar);
  }
  out[outputs - 1] += x[4];
}

// Nine inputs of a forward tile.
struct StridedInput {
  static constexpr int kFrom = 2 * kOutputs + 1, kTo = kStridedPoints;
  static void apply(const Floats (&x)[kFrom], Floats (&out)[kTo]) {
    const Floats even[kFive] = {x[0], x[2], x[4], x[6], x[8]};
    evaluate_inputs(even, out);
    NEEDLE_UNROLL
    for (int i = 0; i < kOutputs; ++i) out[kFive + i] = x[2 * i + 1];
  }
};

struct StridedTaps {
  static constexpr int kFrom = 3, kTo = kTilePoints;
  static void apply(const Floats (&w)[kFrom], Floats (&out)[kTo]) {
    const Floats even[2] = {w[0], w[2]};
    evaluate_taps(even, out);
    out[kFive] = w[1];
  }
};

struct StridedOutput {
  static constexpr int kFrom = kStridedPoints, kTo = kOutputs;
  static void apply(const Floats (&x)[kFrom], Floats (&out)[kTo]) {
    interpolate(x, out);
    NEEDLE_UNROLL
    for (int i = 0; i < kOutputs; ++i) out[i] += x[kFive + i];
  }
};

// Back to the input: of five neighbours, four results of tap 1 and between them four of the others.
struct SpreadInput {
  static constexpr int kFrom = kFive, kTo = kStridedPoints;
  static void apply(const Floats (&x)[kFrom], Floats (&out)[kTo]) {
    evaluate_inputs(x, out);
    NEEDLE_UNROLL
    for (int i = 0; i < kOutputs; ++i) out[kFive + i] = x[i];
  }
};

struct SpreadOutput {
  static constexpr int kFrom = kStridedPoints, kTo = 2 * kOutputs;
  static void apply(const Floats (&x)[kFrom], Floats (&out)[kTo]) {
    Floats between[kOutputs];
    interpolate(x, between);
    NEEDLE_UNROLL
    for (int i = 0; i < kOutputs; ++i) out[2 * i] = x[kFive + i], out[2 * i + 1] = between[i];
  }
};

// For the gradient of the weights: a tile of the result's gradient, and the sums.
struct StridedGradient {
  static constexpr int kFrom = kOutputs, kTo = kStridedPoints;
  static void apply(const Floats (&g)[kFrom], Floats (&out)[kTo]) {
    evaluate_taps(g, out);
    NEEDLE_UNROLL
    for (int i = 0; i < kOutputs; ++i) out[kFive + i] = g[i];
  }
};

struct StridedSums {
  static constexpr int kFrom = kTilePoints, kTo = 3;
  static void apply(const Floats (&x)[kFrom], Floats (&out)[kTo]) {
    Floats even[2];
    interpolate(x, even);
    out[0] = even[0], out[1] = x[kFive], out[2] = even[1];
  }
};

// How many of `points` inputs meet component i of the weights, along one axis.
template <int points>
constexpr int copies_of(int i) {
  return i < kTilePoints - 1 ? 1 : points - kTilePoints + 1;
}

// How many of the `points` x `points` components of the inputs meet component i of the weights.
template <int points>
constexpr int64_t meetings_of(int i) {
  return copies_of<points>(i / kTilePoints) * copies_of<points>(i % kTilePoints);
}

// Where component (row, column) of the inputs lies, if components are `pitch` apart: those that
// meet one of the weights lie together, between others is a cache line, so that they do not all
// fall on the same few places of the first-level cache.
template <int points>
constexpr int64_t place_of(int row, int column, int64_t pitch) {
  constexpr int64_t kLine = 16;
  const int a = row < kTilePoints ? row : kTilePoints - 1;
  const int b = column < kTilePoints ? column : kTilePoints - 1;
  const int before = a * points + copies_of<points>(a) * b + (row - a) * copies_of<points>(b);
  return (before + column - b) * pitch + (a * kTilePoints + b) * kLine;
}

// The first component of the inputs that meets component i of the weights.
template <int points>
constexpr int64_t first_place(int i, int64_t pitch) {
  return place_of<points>(i / kTilePoints, i % kTilePoints, pitch);
}

// Floats of all components.
template <int points>
constexpr int64_t all_components(int64_t pitch) {
  return round_up(place_of<points>(points - 1, points - 1, pitch) + pitch, 16);
}

// ---- in two dimensions

// One vector of channels: patch [from, from], at p[i * from + j] + offset, to its components.
template <class Transform, class Load>
inline void transform_vector(const float* const* p, int64_t offset, float* out, int64_t pitch,
                             const Load& load_vector) {
  constexpr int kFrom = Transform::kFrom, kTo = Transform::kTo;
  Floats middle[kTo][kFrom];
  NEEDLE_UNROLL
  for (int j = 0; j < kFrom; ++j) {
    Floats column[kFrom], done[kTo];
    NEEDLE_UNROLL
    for (int i = 0; i < kFrom; ++i) column[i] = load_vector(p[i * kFrom + j] + offset);
    Transform::apply(column, done);
    NEEDLE_UNROLL
    for (int i = 0; i < kTo; ++i) middle[i][j] = done[i];
  }
  NEEDLE_UNROLL
  for (int i = 0; i < kTo; ++i) {
    Floats done[kTo];
    Transform::apply(middle[i], done);
    NEEDLE_UNROLL
    for (int j = 0; j < kTo; ++j) store(out + offset + place_of<kTo>(i, j, pitch), done[j]);
  }
}

// All channels of a patch; those up to the end of the last vector become zero.
template <class Transform>
inline void transform_patch(const float* const* p, int64_t channels, float* out, int64_t pitch) {
  constexpr int64_t kWidth = kLanes<float>;
  int64_t c = 0;
  for (; c + kWidth <= channels; c += kWidth)
    transform_vector<Transform>(p, c, out, pitch, [](const float* x) { return load(x); });
  if (c == channels) return;
  const Tail<float> tail(channels - c);
  transform_vector<Transform>(p, c, out, pitch, [&](const float* x) { return tail.load(x); });
}

// The way back: components to a patch [to, to], stored by put(i, j, vector).
template <class Transform, class Put>
inline void restore_vector(const float* from, int64_t pitch, const Put& put) {
  constexpr int kFrom = Transform::kFrom, kTo = Transform::kTo;
  Floats middle[kTo][kFrom];
  NEEDLE_UNROLL
  for (int j = 0; j < kFrom; ++j) {
    Floats column[kFrom], done[kTo];
    NEEDLE_UNROLL
    for (int i = 0; i < kFrom; ++i) column[i] = load(from + place_of<kFrom>(i, j, pitch));
    Transform::apply(column, done);
    NEEDLE_UNROLL
    for (int i = 0; i < kTo; ++i) middle[i][j] = done[i];
  }
  NEEDLE_UNROLL
  for (int i = 0; i < kTo; ++i) {
    Floats done[kTo];
    Transform::apply(middle[i], done);
    NEEDLE_UNROLL
    for (int j = 0; j < kTo; ++j) put(i, j, done[j]);
  }
}

// How many tiles an image has.
struct Tiling {
  int64_t images, rows, columns;
  int64_t total() const { return images * rows * columns; }
};

struct TilePosition {
  int64_t image, row, column;
};

inline TilePosition tile_position(const Tiling& t, int64_t tile) {
  const int64_t in_image = tile % (t.rows * t.columns);
  return {tile / (t.rows * t.columns), in_image / t.columns, in_image % t.columns};
}

struct Image {
  int64_t height, width, channels;
};

// Addresses of the pixels of a patch [size, size] from (y, x) on, those outside at `zero`.
template <int size>
inline void patch_addresses(const float** p, const float* images, const Image& shape, int64_t image,
                            int64_t y, int64_t x, const float* zero) {
  const float* base = images + image * shape.height * shape.width * shape.channels;
  for (int i = 0; i < size; ++i) {
    const bool row_inside = y + i >= 0 && y + i < shape.height;
    for (int j = 0; j < size; ++j) {
      const bool inside = row_inside && x + j >= 0 && x + j < shape.width;
      p[i * size + j] = inside ? base + ((y + i) * shape.width + x + j) * shape.channels : zero;
    }
  }
}

// Why Winograd's method does not take a geometry; null: it does.
inline const char* refuse_winograd(const Geometry& g) {
  const bool three = g.kernel[1] == 3 && g.kernel[2] == 3;
  const bool five = g.kernel[1] == 5 && g.kernel[2] == 5;
  if (g.kernel[0] != 1 || !(three || five)) return "winograd: expected a kernel of 3x3 or 5x5";
  const int64_t stride = g.stride[1];
  if (g.stride[0] != 1 || g.stride[2] != stride || stride > (three ? 2 : 1))
    return "winograd: expected stride 1, or 2 in both axes of 3x3";
  for (int i = 0; i < kSpatial; ++i)
    if (g.dilation[i] != 1) return "winograd: expected dilation 1";
  if (g.groups != 1) return "winograd: expected one group";
  return g.in[0] == g.out[0] ? nullptr : "winograd: expected two spatial axes";
}

}  // namespace needle::NEEDLE_ISA
