// Max pooling: vectors run along the channels, windows leave out the padding. Places in the window
// are bytes. Large results go around the caches.
#include <cstring>
#include <limits>

#include "conv/conv.h"
#include "base/table.h"
#include "base/spans.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kWidth = kLanes<float>;
constexpr int64_t kMostPlaces = 256;  // of a window: the index is a byte
constexpr int64_t kStreamShare = 8;   // of elementwise_streaming_bytes()
constexpr int64_t kAheadBytes = 4096;

struct State {
  Geometry g;
  bool apart;     // windows do not overlap and are as large as their step
  bool streams;   // the result is large: past the caches
  int64_t ahead;  // windows; 0: the image is small, nothing is fetched ahead
  int team;
};

// A vector of the largest elements so far and their places; NaN is larger than all, the first of
// equals stays.
#if defined(__AVX512BW__) && defined(__AVX512VL__)
struct Largest {
  __m512 value;
  __m128i place;

  Largest(const Vector<float>& x, int32_t at) : value((__m512)x), place(_mm_set1_epi8(char(at))) {}
  void meet(const Vector<float>& x, int32_t at) {
    const __mmask16 kept = _mm512_cmp_ps_mask(value, value, _CMP_ORD_Q);
    const __mmask16 take = _mm512_mask_cmp_ps_mask(kept, (__m512)x, value, _CMP_NLE_UQ);
    value = _mm512_mask_mov_ps(value, take, (__m512)x);
    place = _mm_mask_mov_epi8(place, take, _mm_set1_epi8(char(at)));
  }
  Vector<float> values() const { return (Vector<float>)value; }
  void store_places(uint8_t* to, int64_t count) const {
    if (count >= kWidth)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), place);
    else
      std::memcpy(to, &place, count);
  }
};

// Places of a vector of results; only(place, x): x where it is that one, else 0.
struct Places {
  __m128i place;

  Places(const uint8_t* from, int64_t count) : place() {
    if (count >= kWidth)
      place = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    else
      std::memcpy(&place, from, count);
  }
  Vector<float> only(int32_t at, const Vector<float>& x) const {
    const __mmask16 here = _mm_cmpeq_epi8_mask(place, _mm_set1_epi8(char(at)));
    return (Vector<float>)_mm512_maskz_mov_ps(here, (__m512)x);
  }
};
#else
typedef int32_t Numbers __attribute__((vector_size(kVectorBytes)));
typedef uint8_t Bytes __attribute__((vector_size(kVectorBytes / 4)));

struct Largest {
  Vector<float> value;
  Numbers place;

  Largest(const Vector<float>& x, int32_t at) : value(x), place(Numbers{} + at) {}
  void meet(const Vector<float>& x, int32_t at) {
    const Numbers take = ~(x <= value) & (value == value);
    value = take ? x : value;
    place = take ? Numbers{} + at : place;
  }
  Vector<float> values() const { return value; }
  void store_places(uint8_t* to, int64_t count) const {
    const Bytes bytes = __builtin_convertvector(place, Bytes);
    std::memcpy(to, &bytes, least(kWidth, count));
  }
};

struct Places {
  Numbers place;

  Places(const uint8_t* from, int64_t count) {
    Bytes bytes = {};
    std::memcpy(&bytes, from, least(kWidth, count));
    place = __builtin_convertvector(bytes, Numbers);
  }
  Vector<float> only(int32_t at, const Vector<float>& x) const {
    return place == at ? x : Vector<float>{};
  }
};
#endif

// The part of the window at (d, h, w) that lies inside the image: taps [begin, end) of each axis.
struct Inside {
  int64_t origin[kSpatial], begin[kSpatial], end[kSpatial];
};

void place_window(const Geometry& g, int axis, int64_t at, Inside& w) {
  const int64_t from = at * g.stride[axis] - g.low[axis], step = g.dilation[axis];
  const int64_t kernel = g.kernel[axis], size = g.in[axis];
  w.origin[axis] = from;
  const bool whole = from >= 0 && from + (kernel - 1) * step < size;
  w.begin[axis] = whole || from >= 0 ? 0 : least(kernel, parts(-from, step));
  w.end[axis] = whole ? kernel : least(kernel, size > from ? parts(size - from, step) : 0);
}

// A place in the window and its pixel, from the pixel of the window's first place.
struct Tap {
  int32_t place;
  int64_t pixel;
};

// The places of windows that lie inside; found anew only where a window's border changes.
struct Taps {
  Tap tap[kMostPlaces];
  int count = 0;
  Inside last = {{}, {-1, -1, -1}, {}};

  void find(const Geometry& g, const Inside& w) {
    const bool same = std::memcmp(w.begin, last.begin, sizeof w.begin) == 0 &&
                      std::memcmp(w.end, last.end, sizeof w.end) == 0;
    if (same) return;
    last = w;
    count = 0;
    for (int64_t i = w.begin[0]; i < w.end[0]; ++i)
      for (int64_t j = w.begin[1]; j < w.end[1]; ++j)
        for (int64_t k = w.begin[2]; k < w.end[2]; ++k)
          tap[count++] = {
              static_cast<int32_t>((i * g.kernel[1] + j) * g.kernel[2] + k),
              (i * g.dilation[0] * g.in[1] + j * g.dilation[1]) * g.in[2] + k * g.dilation[2]};
  }
};

// body(window's position in out, pixel of its first place, taps) for the windows of one line
// (image, depth, height). That pixel may lie outside, the taps' pixels do not.
template <class Body>
inline void each_window(const Geometry& g, int64_t line, const Body& body) {
  Taps taps;
  Inside window;
  place_window(g, 0, line / g.out[1] % g.out[0], window);
  place_window(g, 1, line % g.out[1], window);
  const int64_t pixel = (window.origin[0] * g.in[1] + window.origin[1]) * g.in[2];
  for (int64_t i = 0; i < g.out[2]; ++i) {
    place_window(g, 2, i, window);
    taps.find(g, window);
    body(line * g.out[2] + i, pixel + window.origin[2], taps);
  }
}

// From a window of a line to the one that comes `ahead` windows later, in pixels.
int64_t pixels_ahead(const Geometry& g, int64_t column, int64_t ahead) {
  const int64_t later = column + ahead, lines = later / g.out[2];
  return (later - lines * g.out[2] - column) * g.stride[2] + lines * g.stride[1] * g.in[2];
}

template <bool streams>
void find_largest(const State& s, int64_t line, void* const* buffers) {
  const Geometry& g = s.g;
  const Vector<float> lowest = splat(-std::numeric_limits<float>::infinity());
  const float* image = as<float>(buffers[2]) + line / (g.out[0] * g.out[1]) * g.in_pixels() * g.c;
  each_window(g, line, [&](int64_t position, int64_t first, const Taps& taps) {
    float* out = as<float>(buffers[0]) + position * g.c;
    uint8_t* index = as<uint8_t>(buffers[1]) + position * g.c;
    const int64_t ahead = s.ahead ? pixels_ahead(g, position - line * g.out[2], s.ahead) * g.c : 0;
    each_written<streams>(g.c, [&](int64_t c, const auto& lanes) {
      const float* from = image + first * g.c + c;
      for (int t = 0; t < taps.count && ahead; ++t)
        __builtin_prefetch(from + taps.tap[t].pixel * g.c + ahead);
      const bool padded = taps.tap[0].place > 0;  // the first place is padding, -inf
      Largest largest(padded ? lowest : lanes.load(from + taps.tap[0].pixel * g.c), 0);
      for (int t = padded ? 0 : 1; t < taps.count; ++t)
        largest.meet(lanes.load(from + taps.tap[t].pixel * g.c), taps.tap[t].place);
      lanes.store(out + c, largest.values());
      largest.store_places(index + c, g.c - c);
    });
  });
  if (streams) end_streams();
}

bool streams_to(const State& s, const void* out) {
  return s.streams && s.g.c % kWidth == 0 && is_streamable(out);
}

int64_t run_forward(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  const auto find = streams_to(s, buffers[0]) ? find_largest<true> : find_largest<false>;
  run_spans(s.team, s.g.n * s.g.out[0] * s.g.out[1], false,
            [&](int64_t line, int) { find(s, line, buffers); });
  return -1;
}

// ---- backward: a task is an image, or, where windows do not overlap, a line of windows

enum class Spread { kStore, kStream, kAdd };

template <Spread how>
void spread_line(const Geometry& g, int64_t line, void* const* buffers) {
  constexpr int64_t kAhead = how == Spread::kStream ? kAheadBytes : 0;
  float* image = as<float>(buffers[0]) + line / (g.out[0] * g.out[1]) * g.in_pixels() * g.c;
  each_window(g, line, [&](int64_t position, int64_t first, const Taps& taps) {
    const float* from = as<float>(buffers[1]) + position * g.c;
    const uint8_t* index = as<uint8_t>(buffers[2]) + position * g.c;
    each_written<how == Spread::kStream>(g.c, [&](int64_t c, const auto& lanes) {
      if (kAhead) __builtin_prefetch(byte_offset(from + c, kAhead));
      if (kAhead) __builtin_prefetch(index + c + kAhead / 4);
      const Vector<float> x = lanes.load(from + c);
      const Places places(index + c, g.c - c);
      for (int t = 0; t < taps.count; ++t) {
        float* to = image + (first + taps.tap[t].pixel) * g.c + c;
        const Vector<float> part = places.only(taps.tap[t].place, x);
        lanes.store(to, how == Spread::kAdd ? lanes.load(to) + part : part);
      }
    });
  });
  if (how == Spread::kStream) end_streams();
}

int64_t run_backward(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  const Geometry& g = s.g;
  const int64_t lines = g.out[0] * g.out[1];
  if (s.apart) {
    const auto spread =
        streams_to(s, buffers[0]) ? spread_line<Spread::kStream> : spread_line<Spread::kStore>;
    run_spans(s.team, g.n * lines, false, [&](int64_t line, int) { spread(g, line, buffers); });
    return -1;
  }
  run_tasks(s.team, g.n, [&](int64_t image, int) {
    const int64_t size = g.in_pixels() * g.c;
    std::memset(as<float>(buffers[0]) + image * size, 0, size * sizeof(float));
    for (int64_t line = 0; line < lines; ++line)
      spread_line<Spread::kAdd>(g, image * lines + line, buffers);
  });
  return -1;
}

bool is_large(const Operand& x) {
  return element_count(x) * static_cast<int64_t>(sizeof(float)) >=
         elementwise_streaming_bytes() / kStreamShare;
}

const char* plan_pool(Plan* plan, const Window& how, const Operand& x, const Operand& out,
                      const Operand& result) {
  const char* refused = check_pool(how, x, out);
  if (refused) return refused;
  State& s = state_of<State>(plan);
  s.g = geometry_of(how, x, out);
  if (s.g.taps() > kMostPlaces) return "max_pool: expected at most 256 elements in a window";
  // Then every element of the image belongs to one window, and is written once.
  s.apart = true;
  for (int i = 0; i < kSpatial; ++i)
    s.apart &= s.g.kernel[i] == s.g.stride[i] && s.g.dilation[i] == 1 && s.g.low[i] == 0 &&
               s.g.out[i] * s.g.stride[i] >= s.g.in[i];
  s.streams = is_large(result);
  const int64_t window = s.g.stride[2] * s.g.c * static_cast<int64_t>(sizeof(float));
  s.ahead = is_large(x) ? parts(kAheadBytes, window) : 0;
  plan->workspace = 0;
  return nullptr;
}

}  // namespace

const char* check_pool(const Window& how, const Operand& x, const Operand& out) {
  if (x.dtype != kFloat32 || out.dtype != kFloat32) return "pool: expected float32";
  if (how.axes < 1 || how.axes > kSpatial || x.ndim != how.axes + 2 || out.ndim != x.ndim)
    return "pool: expected 1 to 3 spatial axes";
  if (x.shape[0] != out.shape[0] || x.shape[x.ndim - 1] != out.shape[x.ndim - 1])
    return "pool: shapes do not fit";
  return is_dense(x) && is_dense(out) ? nullptr : "pool: expected dense operands";
}

const char* plan_max_pool(Plan* plan, const Window& how, const Operand& x, const Operand& out) {
  const char* refused = plan_pool(plan, how, x, out, out);
  if (refused) return refused;
  State& s = state_of<State>(plan);
  s.team = team_size(s.g.n * s.g.out[0] * s.g.out[1], element_count(x));
  plan->run = run_forward;
  return nullptr;
}

const char* plan_max_pool_grad(Plan* plan, const Window& how, const Operand& dx, const Operand& g) {
  const char* refused = plan_pool(plan, how, dx, g, dx);
  if (refused) return refused;
  State& s = state_of<State>(plan);
  s.team = team_size(s.apart ? s.g.n * s.g.out[0] * s.g.out[1] : s.g.n, element_count(dx));
  plan->run = run_backward;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
