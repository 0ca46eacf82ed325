// Changes of batches of images: one image after the other, in float32 between load and store.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "image/images.h"
#include "base/table.h"

namespace needle::NEEDLE_ISA {
namespace {

// Rounds to the nearest, halves to even, as NumPy's rint does; needs |x| < 2**22.
float rounded(float x) {
  constexpr float kUnit = 12582912;  // 1.5 * 2**23: neighbours are 1 apart
  return (x + kUnit) - kUnit;
}

template <class T>
T stored(float x);
template <>
inline float stored<float>(float x) {
  return x;
}
template <>
inline uint8_t stored<uint8_t>(float x) {
  return static_cast<uint8_t>(static_cast<int32_t>(rounded(x)));
}

// ---- moving and erasing --------------------------------------------------------------

struct MoveState {
  Images images;
  bool reflect;
  int team;
};

// One line of the result, [width] pixels of `size` bytes, from a line of the image or (null) zeros.
void move_line(const MoveState& s, char* out, const char* line, int64_t left, bool turned) {
  const int64_t width = s.images.width, size = s.images.channels * kItemSize[s.images.dtype];
  if (!line) {
    std::memset(out, 0, width * size);
    return;
  }
  const int64_t first = std::clamp<int64_t>(-left, 0, width);  // the pixels inside the image
  const int64_t end = std::clamp<int64_t>(width - left, first, width);
  const char* inside = line + (left + first) * size;
  if (!turned) std::memcpy(out + first * size, inside, (end - first) * size);
  if (turned) reversed(out + (width - end) * size, inside, end - first, size);
  for (int64_t x = 0; x < width; ++x) {
    if (x == first) x = end;
    if (x >= width) break;
    char* pixel = out + (turned ? width - 1 - x : x) * size;
    if (s.reflect) {
      std::memcpy(pixel, line + mirrored(left + x, width) * size, size);
    } else {
      std::memset(pixel, 0, size);
    }
  }
}

int64_t run_move(const Plan* plan, void* const* buffers, void*) {
  const auto& s = state_of<MoveState>(plan);
  const int64_t line = s.images.width * s.images.channels * kItemSize[s.images.dtype];
  const int64_t size = s.images.height * line;
  run_tasks(s.team, s.images.n, [&](int64_t i, int) {
    char* out = as<char>(buffers[0]) + i * size;
    const char* image = as<char>(buffers[1]) + i * size;
    const int32_t* place = as<int32_t>(buffers[2]) + 3 * i;
    for (int64_t y = 0; y < s.images.height; ++y) {
      const int64_t row = place[0] + y;
      const bool inside = row >= 0 && row < s.images.height;
      const bool empty = !inside && !s.reflect;
      move_line(s, out + y * line, empty ? nullptr : image + mirrored(row, s.images.height) * line,
                place[1], place[2] != 0);
    }
  });
  return -1;
}

int64_t run_erase(const Plan* plan, void* const* buffers, void*) {
  const auto& s = state_of<MoveState>(plan);
  const int64_t pixel = s.images.channels * kItemSize[s.images.dtype];
  const int64_t line = s.images.width * pixel, size = s.images.height * line;
  run_tasks(s.team, s.images.n, [&](int64_t i, int) {
    char* out = as<char>(buffers[0]) + i * size;
    std::memcpy(out, as<char>(buffers[1]) + i * size, size);
    const int32_t* hole = as<int32_t>(buffers[2]) + 4 * i;
    const int64_t left = std::clamp<int64_t>(hole[1], 0, s.images.width);
    const int64_t right = std::clamp<int64_t>(hole[3], left, s.images.width);
    for (int64_t y = std::max<int64_t>(hole[0], 0); y < hole[2] && y < s.images.height; ++y)
      std::memset(out + y * line + left * pixel, 0, (right - left) * pixel);
  });
  return -1;
}

// ---- values ----------------------------------------------------------------------------

struct NormaliseState {
  Images images;
  int team;
};
int64_t run_normalise(const Plan* plan, void* const* buffers, void* workspace) {
  const auto& s = state_of<NormaliseState>(plan);
  float* scale = as<float>(workspace);
  const int64_t size = elements(s.images), block = kRepeats * s.images.channels;
  lay_out(scale, as<float>(buffers[2]), as<float>(buffers[3]), s.images.channels);
  run_tasks(s.team, s.images.n, [&](int64_t i, int) {
    float* out = as<float>(buffers[0]) + i * size;
    if (s.images.dtype == kUInt8)
      normalise_values(out, as<uint8_t>(buffers[1]) + i * size, size, scale, block);
    if (s.images.dtype == kFloat32)
      normalise_values(out, as<float>(buffers[1]) + i * size, size, scale, block);
  });
  return -1;
}

struct ResizeState {
  Images images;
  int64_t height, width;
  int team;

  int64_t line() const { return images.width * images.channels; }
};

// Between which two of n elements the i-th of m lies, and the share of the second.
struct Between {
  int64_t low, high;
  float share;
};

Between between(int64_t i, int64_t n, int64_t m) {
  const double at = std::max((i + 0.5) * n / m - 0.5, 0.0);
  const int64_t low = std::min(static_cast<int64_t>(at), n - 1);
  return {low, std::min(low + 1, n - 1), static_cast<float>(at - low)};
}

template <class T>
void resize_image(const ResizeState& s, const T* image, T* out, const Between* columns,
                  float* blend) {
  const int64_t c = s.images.channels;
  for (int64_t y = 0; y < s.height; ++y) {
    const Between rows = between(y, s.images.height, s.height);
    const T *low = image + rows.low * s.line(), *high = image + rows.high * s.line();
    for (int64_t j = 0; j < s.line(); ++j)
      blend[j] =
          static_cast<float>(low[j]) * (1 - rows.share) + static_cast<float>(high[j]) * rows.share;
    for (int64_t x = 0; x < s.width; ++x) {
      const Between& at = columns[x];
      const float *left = blend + at.low * c, *right = blend + at.high * c;
      for (int64_t k = 0; k < c; ++k)
        *out++ = stored<T>(left[k] * (1 - at.share) + right[k] * at.share);
    }
  }
}

int64_t run_resize(const Plan* plan, void* const* buffers, void* workspace) {
  const auto& s = state_of<ResizeState>(plan);
  Between* columns = as<Between>(workspace);
  for (int64_t x = 0; x < s.width; ++x) columns[x] = between(x, s.images.width, s.width);
  float* blends = reinterpret_cast<float*>(columns + s.width);
  const int64_t size = elements(s.images), made = s.height * s.width * s.images.channels;
  run_tasks(s.team, s.images.n, [&](int64_t i, int thread) {
    float* blend = blends + thread * s.line();
    if (s.images.dtype == kUInt8)
      resize_image(s, as<uint8_t>(buffers[1]) + i * size, as<uint8_t>(buffers[0]) + i * made,
                   columns, blend);
    else
      resize_image(s, as<float>(buffers[1]) + i * size, as<float>(buffers[0]) + i * made, columns,
                   blend);
  });
  return -1;
}

struct JitterState {
  Images images;
  float top;
  int team;
};
constexpr float kGrey[3] = {0.299f, 0.587f, 0.114f};  // ITU-R BT.601

inline float grey(const float* pixel) {
  return pixel[0] * kGrey[0] + pixel[1] * kGrey[1] + pixel[2] * kGrey[2];
}

template <class T>
inline void brighten(const JitterState& s, const T* pixel, float factor, float* out) {
  for (int k = 0; k < 3; ++k)
    out[k] = std::min(std::max(static_cast<float>(pixel[k]) * factor, 0.0f), s.top);
}

template <class T>
void jitter_image(const JitterState& s, const T* image, T* out, const float* factors) {
  float pixel[3];
  double sum = 0;
  for (int64_t y = 0; y < s.images.height; ++y) {
    float line = 0;
    for (int64_t x = 0; x < s.images.width; ++x) {
      brighten(s, image + 3 * (y * s.images.width + x), factors[0], pixel);
      line += grey(pixel);
    }
    sum += line;
  }
  const float mean = static_cast<float>(sum / pixels(s.images));
  for (int64_t p = 0; p < pixels(s.images); ++p) {
    brighten(s, image + 3 * p, factors[0], pixel);
    for (float& value : pixel)
      value = std::min(std::max(mean + (value - mean) * factors[1], 0.0f), s.top);
    const float own = grey(pixel);
    for (int k = 0; k < 3; ++k)
      out[3 * p + k] =
          stored<T>(std::min(std::max(own + (pixel[k] - own) * factors[2], 0.0f), s.top));
  }
}

int64_t run_jitter(const Plan* plan, void* const* buffers, void*) {
  const auto& s = state_of<JitterState>(plan);
  const int64_t size = elements(s.images);
  run_tasks(s.team, s.images.n, [&](int64_t i, int) {
    const float* factors = as<float>(buffers[2]) + 3 * i;
    if (s.images.dtype == kUInt8)
      jitter_image(s, as<uint8_t>(buffers[1]) + i * size, as<uint8_t>(buffers[0]) + i * size,
                   factors);
    else
      jitter_image(s, as<float>(buffers[1]) + i * size, as<float>(buffers[0]) + i * size, factors);
  });
  return -1;
}

}  // namespace

const char* plan_move_images(Plan* plan, const Images& images, bool reflect) {
  const char* refused = check_images(images);
  return refused ? refused : planned(plan, MoveState{images, reflect, team_of(images)}, run_move);
}

const char* plan_erase_images(Plan* plan, const Images& images) {
  const char* refused = check_images(images);
  return refused ? refused : planned(plan, MoveState{images, false, team_of(images)}, run_erase);
}

const char* plan_normalise_images(Plan* plan, const Images& images) {
  const char* refused = check_images(images);
  if (refused) return refused;
  const int64_t workspace = 2 * kRepeats * images.channels * static_cast<int64_t>(sizeof(float));
  return planned(plan, NormaliseState{images, team_of(images)}, run_normalise, workspace);
}

const char* plan_resize_images(Plan* plan, const Images& images, int64_t height, int64_t width) {
  const char* refused = check_images(images);
  if (refused) return refused;
  if (height < 1 || width < 1) return "expected a size above zero";
  const int64_t work = images.n * (elements(images) + height * width * images.channels);
  const ResizeState state{images, height, width, team_size(images.n, work)};
  const int64_t workspace = width * static_cast<int64_t>(sizeof(Between)) +
                            state.team * state.line() * static_cast<int64_t>(sizeof(float));
  return planned(plan, state, run_resize, workspace);
}

const char* plan_jitter_images(Plan* plan, const Images& images, double top) {
  const char* refused = check_images(images);
  if (refused) return refused;
  if (images.channels != 3) return "expected 3 colours";
  return planned(plan, JitterState{images, static_cast<float>(top), team_of(images)}, run_jitter);
}

}  // namespace needle::NEEDLE_ISA
