// What kernels for batches of images share.
#pragma once
#include <algorithm>
#include <cstring>

#include "base/axes.h"

namespace needle::NEEDLE_ISA {

inline const char* check_images(const Images& images) {
  if (images.dtype != kUInt8 && images.dtype != kFloat32) return "expected bytes or float32";
  const bool sized = images.n >= 0 && images.height > 0 && images.width > 0 && images.channels > 0;
  return sized ? nullptr : "expected images with pixels";
}

inline int64_t pixels(const Images& images) { return images.height * images.width; }
inline int64_t elements(const Images& images) { return pixels(images) * images.channels; }
inline int team_of(const Images& images) {
  return team_size(images.n, images.n * elements(images));
}

// The place in [0, n) where a mirror at the first and the last element shows place i.
inline int64_t mirrored(int64_t i, int64_t n) {
  if (n == 1) return 0;
  const int64_t period = 2 * (n - 1), place = (i % period + period) % period;
  return place < n ? place : period - place;
}

// Pixels of `size` bytes, the last one first. Sizes that the compiler knows are moved in registers.
template <int kSize>
void reverse_pixels(char* out, const char* pixels, int64_t n, int64_t size = kSize) {
  for (int64_t x = 0; x < n; ++x)
    std::memcpy(out + x * size, pixels + (n - 1 - x) * size, kSize ? kSize : size);
}

inline void reversed(char* out, const char* pixels, int64_t n, int64_t size) {
  switch (size) {
    case 1:
      return reverse_pixels<1>(out, pixels, n);
    case 3:
      return reverse_pixels<3>(out, pixels, n);
    case 4:
      return reverse_pixels<4>(out, pixels, n);
    case 12:
      return reverse_pixels<12>(out, pixels, n);
    default:
      return reverse_pixels<0>(out, pixels, n, size);
  }
}

constexpr int64_t kRepeats = 32;  // pixels for which scales and shifts are laid out

// Lays out scales and shifts, [2, block], for a whole number of pixels.
inline void lay_out(float* scale, const float* scales, const float* shifts, int64_t c) {
  const int64_t block = kRepeats * c;
  for (int64_t j = 0; j < block; ++j) {
    scale[j] = scales[j % c];
    scale[block + j] = shifts[j % c];
  }
}

template <class T>
void normalise_values(float* out, const T* values, int64_t size, const float* scale,
                      int64_t block) {
  const float* shift = scale + block;
  for (int64_t start = 0; start < size; start += block) {
    const int64_t n = std::min(block, size - start);
    for (int64_t j = 0; j < n; ++j)
      out[start + j] = static_cast<float>(values[start + j]) * scale[j] + shift[j];
  }
}

template <class State>
const char* planned(Plan* plan, const State& state, Run run, int64_t workspace = 0) {
  state_of<State>(plan) = state;
  plan->run = run;
  plan->workspace = workspace;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
