// NumPy's global stream: the Mersenne Twister (Matsumoto, Nishimura, "Mersenne Twister: a
// 623-dimensionally equidistributed uniform pseudo-random number generator", 1998), and what
// numpy.random.RandomState makes of its words, bit for bit. The words follow one from another, but
// a whole state of them is made by loops over vectors. This file is compiled without fused
// multiplication and addition, as NumPy is.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/axes.h"
#include "elementwise/elementwise.h"
#include "elementwise/loops.h"
#include "vector_basic.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int kWords = MersenneTwister::kWords, kLag = 397;
constexpr int64_t kBatch = 4096;             // words drawn at once
constexpr int64_t kSlice = 1024;             // numbers, or pairs of them, of a task
constexpr int64_t kPairs = 16 * kSlice;      // tried at once
constexpr int64_t kNumbers = 32 * kSlice;    // uniform ones made at once
constexpr double kUnit = 1.0 / (1LL << 53);  // from 53 bits to [0, 1)
constexpr float kLast = 0x0.ffffffp0f;       // the largest float32 there: more is rounded to 1

struct State {
  int32_t kind;
  int64_t n, low;
  uint32_t last;
};

inline uint32_t next_word(uint32_t far, uint32_t high, uint32_t low) {
  const uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
  return far ^ y >> 1 ^ (low & 1 ? 0x9908b0dfu : 0u);
}

void twist(uint32_t* key) {
  constexpr int kNear = kWords - kLag;
#pragma omp simd safelen(64)
  for (int i = 0; i < kNear; ++i) key[i] = next_word(key[i + kLag], key[i], key[i + 1]);
#pragma omp simd safelen(64)
  for (int i = kNear; i < kWords - 1; ++i) key[i] = next_word(key[i - kNear], key[i], key[i + 1]);
  key[kWords - 1] = next_word(key[kLag - 1], key[kWords - 1], key[0]);
}

// The words of the generator's state as they are.
void take_words(MersenneTwister& twister, uint32_t* __restrict out, int64_t n) {
  while (n > 0) {
    if (twister.place == kWords) {
      twist(twister.key);
      twister.place = 0;
    }
    const int count = static_cast<int>(least(n, kWords - twister.place));
    std::copy_n(twister.key + twister.place, count, out);
    twister.place += count;
    out += count;
    n -= count;
  }
}

// The generator's output for them.
void temper(uint32_t* words, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t y = words[i];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    words[i] = y ^ y >> 18;
  }
}

void draw_words(MersenneTwister& twister, uint32_t* out, int64_t n) {
  take_words(twister, out, n);
  temper(out, n);
}

// 53 bits of two words, in [0, 1).
inline double unit(uint32_t first, uint32_t second) {
  const auto high = static_cast<int32_t>(first >> 5), low = static_cast<int32_t>(second >> 6);
  return (high * 67108864.0 + low) * kUnit;
}

// The words follow one from another; threads make numbers of a slice of them each.
void draw_uniform(MersenneTwister& twister, float* out, int64_t n, uint32_t* words) {
  for (int64_t i = 0; i < n; i += kNumbers) {
    const int64_t count = least(n - i, kNumbers), slices = parts(count, kSlice);
    take_words(twister, words, 2 * count);
    run_tasks(team_size(slices, 4 * count), slices, [&](int64_t slice, int) {
      const int64_t first = slice * kSlice, end = least(first + kSlice, count);
      temper(words + 2 * first, 2 * (end - first));
      for (int64_t j = first; j < end; ++j)
        out[i + j] = std::min(static_cast<float>(unit(words[2 * j], words[2 * j + 1])), kLast);
    });
  }
}

// 2 u - 1 for the number u in [0, 1) of 53 bits of two words, which are `both`: exact, of a number
// in [1, 2) that has the last 52 of these bits.
inline double centred(uint64_t both) {
  constexpr uint64_t kTop = uint64_t{1} << 52, kHigh = (2 * kTop - 1) >> 26 << 26;
  const uint64_t number = (both << 21 & kHigh) | both >> 38;
  const double one_to_two = math::from_bits<double>((number & (kTop - 1)) | math::bits(1.0));
  return one_to_two - math::from_bits<double>(math::bits(2.0) - (number & kTop));
}

struct Pairs {
  double *point, *square;  // x and y of points within the unit circle, but not in its centre

  // The points of `count` times four words that are; returns how many.
  int64_t choose(int64_t count, uint32_t* words) const {
    temper(words, 4 * count);
    for (int64_t i = 0; i < 2 * count; ++i) {
      uint64_t both;
      std::memcpy(&both, words + 2 * i, sizeof both);
      point[i] = centred(both);
    }
    for (int64_t i = 0; i < count; ++i)
      square[i] = point[2 * i] * point[2 * i] + point[2 * i + 1] * point[2 * i + 1];
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double sum = square[i];
      std::memmove(point + 2 * kept, point + 2 * i, 2 * sizeof(double));
      square[kept] = sum;
      kept += (sum < 1.0) & (sum != 0.0);
    }
    return kept;
  }

  // Two normal numbers of each, the second one first. NumPy's logarithm is the C library's; one by
  // vectors gives the same float32, unless a number lies next to where rounding changes.
  void finish(int64_t count, float* out) const {
    static const Contiguous log = loop_of(k_log, kFloat64);
    double logarithm[kSlice];
    void* const inputs[] = {square};
    log(logarithm, inputs, count);
    if (!scale(count, logarithm, out)) return;
    for (int64_t i = 0; i < count; ++i) logarithm[i] = std::log(square[i]);
    scale(count, logarithm, out);
  }

  // Returns whether one of the numbers is next to where rounding changes.
  bool scale(int64_t count, const double* logarithm, float* out) const {
    int64_t unsure = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double factor = std::sqrt(-2.0 * logarithm[i] / square[i]);
      const double second = factor * point[2 * i + 1], first = factor * point[2 * i];
      out[2 * i] = static_cast<float>(second);
      out[2 * i + 1] = static_cast<float>(first);
      unsure |= is_between(second) | is_between(first);
    }
    return unsure != 0;
  }

  // Whether a number is within 64 units in its last place of the middle between two float32.
  static int64_t is_between(double x) {
    constexpr int kBits = 29;  // of the mantissa beyond float32's
    constexpr int64_t kNear = int64_t{64} << (64 - kBits);
    const uint64_t beyond = static_cast<uint64_t>(math::bits(x)) << (64 - kBits);
    return static_cast<int64_t>(beyond + kNear) < std::numeric_limits<int64_t>::min() + 2 * kNear;
  }
};

// Tries so many pairs of numbers, and returns how many normal ones that gave. Threads try a slice
// of them each; what is left of the slices then follows each other.
int64_t try_pairs(MersenneTwister& twister, float* out, int64_t pairs, uint32_t* words) {
  const int64_t slices = parts(pairs, kSlice);
  const int team = team_size(slices, 8 * pairs);
  auto* numbers = reinterpret_cast<double*>(words + 4 * pairs);
  const auto slice = [&](int64_t i) {
    return Pairs{numbers + 2 * kSlice * i, numbers + 2 * pairs + kSlice * i};
  };
  take_words(twister, words, 4 * pairs);
  int64_t kept[kPairs / kSlice], before[kPairs / kSlice + 1] = {0};
  run_tasks(team, slices, [&](int64_t i, int) {
    kept[i] = slice(i).choose(least(pairs - i * kSlice, kSlice), words + 4 * kSlice * i);
  });
  for (int64_t i = 0; i < slices; ++i) before[i + 1] = before[i] + kept[i];
  run_tasks(team, slices, [&](int64_t i, int) { slice(i).finish(kept[i], out + 2 * before[i]); });
  return 2 * before[slices];
}

// Marsaglia's polar method.
void draw_normal(MersenneTwister& twister, float* out, int64_t n, uint32_t* words) {
  while (n > 0) {
    // No more tries than pairs are missing: the words that follow are for others.
    const int64_t made = try_pairs(twister, out, least(n / 2, kPairs), words);
    out += made;
    n -= made;
  }
}

uint32_t ones_below(uint32_t last) {
  uint32_t mask = last;
  for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
  return mask;
}

void draw_integers(MersenneTwister& twister, int64_t* out, const State& s, uint32_t* words) {
  if (s.last == 0) {
    std::fill(out, out + s.n, s.low);
    return;
  }
  const uint32_t mask = ones_below(s.last);
  for (int64_t done = 0; done < s.n;) {
    const int64_t count = least(s.n - done, kBatch);
    draw_words(twister, words, count);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t word = words[i] & mask;
      out[done] = s.low + word;
      done += word <= s.last;
    }
  }
}

// The numbers below n, of which the i-th changes places with one of those up to it, from the last
// one down. They are kept in 32 bits, in the second half of the result, until all have moved: so
// they take half as much of the caches.
void draw_order(MersenneTwister& twister, int64_t* out, int64_t n, uint32_t* words) {
  constexpr int64_t kAhead = 16;
  auto* numbers = reinterpret_cast<uint32_t*>(out) + n;
  for (int64_t i = 0; i < n; ++i) numbers[i] = static_cast<uint32_t>(i);
  for (int64_t i = n - 1; i > 0;) {
    const uint32_t mask = ones_below(static_cast<uint32_t>(i));
    const int64_t lowest = (mask >> 1) + int64_t{1};  // from which on the mask is the same
    const int64_t count = least(i - lowest + 1, kBatch - kAhead);
    draw_words(twister, words, count);
    int64_t kept = 0;
    for (int64_t j = 0; j < count; ++j) {
      const uint32_t word = words[j] & mask;
      words[kept] = word;
      kept += word <= i - kept;
    }
    for (int64_t j = 0; j < kAhead; ++j) words[kept + j] = 0;
    for (int64_t j = 0; j < kept; ++j) {
      __builtin_prefetch(numbers + words[j + kAhead], 1);
      std::swap(numbers[i - j], numbers[words[j]]);
    }
    i -= kept;
  }
  for (int64_t i = 0; i < n; i += kBatch) {  // a batch at a time: they lie in the same memory
    const int64_t count = least(n - i, kBatch);
    std::copy(numbers + i, numbers + i + count, words);
    for (int64_t j = 0; j < count; ++j) out[i + j] = words[j];
  }
}

int64_t run_draw(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  auto& twister = *as<MersenneTwister>(buffers[1]);
  auto* words = as<uint32_t>(workspace);
  if (s.kind == kDrawUniform) draw_uniform(twister, as<float>(buffers[0]), s.n, words);
  if (s.kind == kDrawNormal) draw_normal(twister, as<float>(buffers[0]), s.n, words);
  if (s.kind == kDrawIntegers) draw_integers(twister, as<int64_t>(buffers[0]), s, words);
  if (s.kind == kDrawOrder) draw_order(twister, as<int64_t>(buffers[0]), s.n, words);
  return -1;
}

}  // namespace

const char* plan_draw(Plan* plan, int32_t kind, const Operand& out, int64_t low, uint32_t last) {
  const bool is_float = kind == kDrawUniform || kind == kDrawNormal;
  if (out.dtype != (is_float ? kFloat32 : kInt64)) return "draw: expected float32 or int64";
  const int64_t n = element_count(out);
  if (kind == kDrawNormal && n % 2) return "normal numbers are drawn in pairs";
  if (kind == kDrawOrder && n > UINT32_MAX) return "an order of more than 2**32 - 1 numbers";
  plan->run = run_draw;
  plan->workspace = kind == kDrawNormal    ? least(n / 2, kPairs) * (4 * 4 + 3 * 8)
                    : kind == kDrawUniform ? least(n, kNumbers) * 2 * 4
                                           : kBatch * 4;
  state_of<State>(plan) = {kind, n, low, last};
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
