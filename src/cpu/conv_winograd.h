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
// Sources: Winograd, "Arithmetic Complexity of Computations", 1980; Lavin and Gray, "Fast
// Algorithms for Convolutional Neural Networks", 2016, arXiv:1509.09308; Barabasz et al., "Error
// Analysis and Improving the Accuracy of Winograd Convolution", 2020, arXiv:1803.10986.
#pragma once
#include "conv.h"

namespace needle::NEEDLE_ISA {

constexpr int kTilePoints = 6;
constexpr int kComponents = kTilePoints * kTilePoints;
constexpr float kA = 0.625f, kA2 = kA * kA, kB = 1.5f, kB2 = kB * kB;

using Floats = Vector<float>;

// B' x: six inputs.
struct TransformInput {
  static constexpr int kSize = kTilePoints;
  static void apply(const Floats (&x)[kSize], Floats (&out)[kTilePoints]) {
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
  static constexpr int kSize = taps;
  static void apply(const Floats (&w)[taps], Floats (&out)[kTilePoints]) {
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
  static constexpr int kSize = outputs;
  static void apply(const Floats (&x)[kTilePoints], Floats (&out)[outputs]) {
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

// One vector of channels: patch [size, size], at p[i * size + j] + offset, to its 36 components,
// `pitch` apart.
template <class Transform, class Load>
inline void transform_vector(const float* const* p, int64_t offset, float* out, int64_t pitch,
                             const Load& load_vector) {
  constexpr int kSize = Transform::kSize;
  Floats middle[kTilePoints][kSize];
#pragma GCC unroll 6
  for (int j = 0; j < kSize; ++j) {
    Floats column[kSize], done[kTilePoints];
#pragma GCC unroll 6
    for (int i = 0; i < kSize; ++i) column[i] = load_vector(p[i * kSize + j] + offset);
    Transform::apply(column, done);
#pragma GCC unroll 6
    for (int i = 0; i < kTilePoints; ++i) middle[i][j] = done[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < kTilePoints; ++i) {
    Floats done[kTilePoints];
    Transform::apply(middle[i], done);
#pragma GCC unroll 6
    for (int j = 0; j < kTilePoints; ++j)
      store(out + offset + (i * kTilePoints + j) * pitch, done[j]);
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

// The way back: 36 components to a patch [outputs, outputs], stored by put(i, j, vector).
template <int outputs, class Put>
inline void restore_vector(const float* from, int64_t pitch, const Put& put) {
  Floats middle[outputs][kTilePoints];
#pragma GCC unroll 6
  for (int j = 0; j < kTilePoints; ++j) {
    Floats column[kTilePoints], done[outputs];
#pragma GCC unroll 6
    for (int i = 0; i < kTilePoints; ++i) column[i] = load(from + (i * kTilePoints + j) * pitch);
    TransformOutput<outputs>::apply(column, done);
#pragma GCC unroll 6
    for (int i = 0; i < outputs; ++i) middle[i][j] = done[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < outputs; ++i) {
    Floats done[outputs];
    TransformOutput<outputs>::apply(middle[i], done);
#pragma GCC unroll 6
    for (int j = 0; j < outputs; ++j) put(i, j, done[j]);
  }
}

// Where the tiles of an image lie.
struct Tiling {
  int64_t images, rows, columns;  // tiles
  int64_t step;                   // pixels from tile to tile
  int64_t total() const { return images * rows * columns; }
};

struct TilePosition {
  int64_t image, y, x;  // y, x: of its first pixel of the result
};

inline TilePosition tile_position(const Tiling& t, int64_t tile) {
  const int64_t in_image = tile % (t.rows * t.columns);
  return {tile / (t.rows * t.columns), in_image / t.columns * t.step,
          in_image % t.columns * t.step};
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

}  // namespace needle::NEEDLE_ISA
