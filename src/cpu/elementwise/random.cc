// Random bits from Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
// as 1, 2, 3", 2011). Block i of four words is a function of the key and counter + i alone.
#include <algorithm>

#include "base/table.h"
#include "base/threads.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int kLanes = 32;  // blocks computed side by side

constexpr int64_t kWords = 4 * kLanes;

struct PhiloxState {
  uint64_t offset;
  int64_t words;
  bool is_uniform;  // float32 instead of the words
};

struct Stream {
  uint64_t key, counter;
};

// Words 4*i .. 4*i+3 of out come from block counter + i. Words are kept in 64 bits, in which their
// products fit and all lanes do the same.
void philox(uint32_t* out, uint64_t key, uint64_t counter) {
  constexpr uint64_t kLow = 0xffffffff;
  uint64_t x[4][kLanes];
  for (int i = 0; i < kLanes; ++i) {
    x[0][i] = (counter + i) & kLow;
    x[1][i] = (counter + i) >> 32;
    x[2][i] = x[3][i] = 0;
  }
  uint64_t key0 = key & kLow, key1 = key >> 32;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      uint64_t product0 = 0xD2511F53 * x[0][i];
      uint64_t product1 = 0xCD9E8D57 * x[2][i];
      x[0][i] = product1 >> 32 ^ x[1][i] ^ key0;
      x[1][i] = product1 & kLow;
      x[2][i] = product0 >> 32 ^ x[3][i] ^ key1;
      x[3][i] = product0 & kLow;
    }
    key0 = (key0 + 0x9E3779B9) & kLow;
    key1 = (key1 + 0xBB67AE85) & kLow;
  }
  for (int i = 0; i < kLanes; ++i)
    for (int w = 0; w < 4; ++w) out[4 * i + w] = static_cast<uint32_t>(x[w][i]);
}

// Words from `first`, a multiple of four, on to `end`.
void fill_words(uint32_t* out, const Stream& stream, int64_t first, int64_t end) {
  int64_t word = first;
  for (; word + kWords <= end; word += kWords)
    philox(out + word, stream.key, stream.counter + word / 4);
  if (word == end) return;
  uint32_t rest[kWords];
  philox(rest, stream.key, stream.counter + word / 4);
  std::copy(rest, rest + (end - word), out + word);
}

// Multiples of 2**-24 in [0, 1), by the low bits of the words.
void fill_uniform(float* out, const Stream& stream, int64_t first, int64_t end) {
  uint32_t words[kWords];
  float values[kWords];
  for (int64_t word = first; word < end; word += kWords) {
    philox(words, stream.key, stream.counter + word / 4);
    for (int i = 0; i < kWords; ++i)
      values[i] = static_cast<float>(static_cast<int32_t>(words[i] & 0xFFFFFF)) * 0x1p-24F;
    std::copy(values, values + std::min(kWords, end - word), out + word);
  }
}

int64_t run_random_bits(const Plan* plan, void* const* buffers, void*) {
  const auto& state = *reinterpret_cast<const PhiloxState*>(plan->state);
  Stream stream = *static_cast<const Stream*>(buffers[1]);
  stream.counter += state.offset;
  int64_t lines = (state.words + 63) / 64;
  const int team = state.words < kSerial ? 1 : threads();
  parallel(team, [&](int part) {
    const int64_t first = lines * part / team * 64;
    const int64_t end = std::min(lines * (part + 1) / team * 64, state.words);
    if (state.is_uniform) {
      fill_uniform(static_cast<float*>(buffers[0]), stream, first, end);
    } else {
      fill_words(static_cast<uint32_t*>(buffers[0]), stream, first, end);
    }
  });
  return -1;
}

}  // namespace

const char* plan_random_bits(Plan* plan, const Operand& out, uint64_t offset) {
  const bool is_uniform = out.dtype == kFloat32;
  if (!is_uniform && out.dtype != kInt32 && out.dtype != kInt64)
    return "random bits are int32 or int64";
  int64_t words = kItemSize[out.dtype] / 4;
  for (int d = 0; d < out.ndim; ++d) words *= out.shape[d];
  plan->run = run_random_bits;
  plan->workspace = 0;
  *reinterpret_cast<PhiloxState*>(plan->state) = {offset, words, is_uniform};
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
