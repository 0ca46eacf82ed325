// Several changes of a batch of images in one pass: random numbers, gather, crop, flip, cutout,
// normalise. The bits are those of the kernels in images.cc, one after the other.
#include <numeric>

#include "image/images.h"
#include "base/table.h"

namespace needle::NEEDLE_ISA {
namespace {

struct AugmentState {
  Images images;  // all those of the data set
  AugmentTable table;
  int team;

  int64_t pixel() const { return images.channels * kItemSize[images.dtype]; }
  // Of each thread: sources of rows and columns, the holes, and a line of pixels or of sources.
  int64_t private_bytes() const {
    const int64_t maps = (images.height + images.width + 4 * table.steps) * 4;
    const int64_t line = most(images.width * pixel(), 4 * most(images.height, images.width));
    return round_up(maps + line, 64);
  }
  int64_t shared_bytes() const {
    return round_up(2 * kRepeats * images.channels * static_cast<int64_t>(sizeof(float)), 64);
  }
};

// The numbers of an image, in [0, 1): words of Philox blocks (random.cc), one after the other.
class Draws {
 public:
  Draws(uint64_t seed, uint64_t epoch, uint64_t index)
      : seed_(seed), epoch_(epoch), index_(index) {}
  double next() {
    if (used_ % 4 == 0) fill(used_ / 4);
    return words_[used_++ % 4] * 0x1p-32;
  }

 private:
  void fill(uint32_t block);
  uint64_t seed_, epoch_, index_;
  uint32_t words_[4], used_ = 0;
};

void Draws::fill(uint32_t block) {
  uint32_t c[4] = {static_cast<uint32_t>(index_), static_cast<uint32_t>(index_ >> 32), block,
                   static_cast<uint32_t>(epoch_)};
  uint32_t low = static_cast<uint32_t>(seed_), high = static_cast<uint32_t>(seed_ >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p = uint64_t{0xD2511F53} * c[0], q = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(q >> 32) ^ c[1] ^ low, static_cast<uint32_t>(q),
                              static_cast<uint32_t>(p >> 32) ^ c[3] ^ high,
                              static_cast<uint32_t>(p)};
    std::copy(next, next + 4, c);
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
  std::copy(c, c + 4, words_);
}

// Moves a map of sources by `shift`; outside are mirror images or nothing (-1).
void shift_map(int32_t* map, int32_t* free, int64_t n, int64_t shift, bool reflect) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = i + shift;
    free[i] = reflect ? map[mirrored(at, n)] : at < 0 || at >= n ? -1 : map[at];
  }
  std::copy(free, free + n, map);
}

// What happens to an image: where its rows and columns come from, and where it has holes.
struct Changes {
  int32_t *rows, *columns, *holes, *line;
  int64_t hole_count;
};

int64_t drawn(Draws* draws, double range) { return static_cast<int32_t>(draws->next() * range); }

void draw_changes(const AugmentState& s, const double* steps, Draws draws, Changes* changes) {
  const int64_t height = s.images.height, width = s.images.width;
  std::iota(changes->rows, changes->rows + height, 0);
  std::iota(changes->columns, changes->columns + width, 0);
  changes->hole_count = 0;
  for (int64_t i = 0; i < s.table.steps; ++i, steps += 2) {
    const auto kind = static_cast<AugmentStep>(static_cast<int32_t>(steps[0]));
    const double value = steps[1];
    const int64_t pad = static_cast<int64_t>(value);
    if (kind == kFlip) {
      if (draws.next() < value) std::reverse(changes->columns, changes->columns + width);
    } else if (kind == kCutout) {
      int32_t* hole = changes->holes + 4 * changes->hole_count++;
      hole[0] = static_cast<int32_t>(drawn(&draws, static_cast<double>(height)) - pad / 2);
      hole[1] = static_cast<int32_t>(drawn(&draws, static_cast<double>(width)) - pad / 2);
      hole[2] = static_cast<int32_t>(hole[0] + pad);
      hole[3] = static_cast<int32_t>(hole[1] + pad);
    } else {
      const bool reflect = kind == kCropReflect;
      shift_map(changes->rows, changes->line, height, drawn(&draws, 2 * value + 1) - pad, reflect);
      shift_map(changes->columns, changes->line, width, drawn(&draws, 2 * value + 1) - pad,
                reflect);
    }
  }
}

// Columns [first, end) that come from neighbours, all in one direction; outside are zeros.
struct Stretch {
  int64_t first, end;
  int direction;  // 0: neither
};

Stretch stretch_of(const int32_t* columns, int64_t width) {
  Stretch stretch{0, width, 0};
  while (stretch.first < width && columns[stretch.first] < 0) ++stretch.first;
  stretch.end = stretch.first;
  while (stretch.end < width && columns[stretch.end] >= 0) ++stretch.end;
  if (stretch.first == width) return stretch;
  stretch.direction =
      stretch.end - stretch.first > 1 && columns[stretch.first + 1] < columns[stretch.first] ? -1
                                                                                             : 1;
  for (int64_t x = stretch.first; x < width; ++x) {
    const int64_t expected =
        x < stretch.end ? columns[stretch.first] + stretch.direction * (x - stretch.first) : -1;
    if (columns[x] != expected) stretch.direction = 0;
  }
  return stretch;
}

void gather_line(char* out, const char* line, const int32_t* columns, const Stretch& stretch,
                 int64_t width, int64_t size) {
  if (stretch.direction == 0 && stretch.first < width) {
    for (int64_t x = 0; x < width; ++x) {
      if (columns[x] >= 0) std::memcpy(out + x * size, line + columns[x] * size, size);
      if (columns[x] < 0) std::memset(out + x * size, 0, size);
    }
    return;
  }
  const int64_t n = stretch.end - stretch.first;
  std::memset(out, 0, stretch.first * size);
  std::memset(out + stretch.end * size, 0, (width - stretch.end) * size);
  if (n == 0) return;
  if (stretch.direction > 0)
    std::memcpy(out + stretch.first * size, line + columns[stretch.first] * size, n * size);
  else
    reversed(out + stretch.first * size, line + columns[stretch.end - 1] * size, n, size);
}

void dig(const Changes& changes, char* line, int64_t y, int64_t width, int64_t size) {
  for (int64_t i = 0; i < changes.hole_count; ++i) {
    const int32_t* hole = changes.holes + 4 * i;
    const int64_t left = std::clamp<int64_t>(hole[1], 0, width);
    const int64_t right = std::clamp<int64_t>(hole[3], left, width);
    if (y >= hole[0] && y < hole[2]) std::memset(line + left * size, 0, (right - left) * size);
  }
}

void augment_image(const AugmentState& s, const char* image, char* out, const Changes& changes,
                   const float* scale) {
  const int64_t width = s.images.width, size = s.pixel(), values = width * s.images.channels;
  const int64_t out_line = s.table.normalise ? values * 4 : width * size;
  const Stretch stretch = stretch_of(changes.columns, width);
  for (int64_t y = 0; y < s.images.height; ++y, out += out_line) {
    char* line = s.table.normalise ? reinterpret_cast<char*>(changes.line) : out;
    if (changes.rows[y] < 0)
      std::memset(line, 0, width * size);
    else
      gather_line(line, image + changes.rows[y] * width * size, changes.columns, stretch, width,
                  size);
    dig(changes, line, y, width, size);
    if (!s.table.normalise) continue;
    const int64_t block = kRepeats * s.images.channels;
    if (s.images.dtype == kUInt8)
      normalise_values(as<float>(out), as<uint8_t>(line), values, scale, block);
    else
      normalise_values(as<float>(out), as<float>(line), values, scale, block);
  }
}

int64_t run_augment(const Plan* plan, void* const* buffers, void* workspace) {
  const auto& s = state_of<AugmentState>(plan);
  const int64_t size = pixels(s.images) * s.pixel();
  const int64_t out_size = s.table.normalise ? elements(s.images) * 4 : size;
  float* scale = as<float>(workspace);
  if (s.table.normalise)
    lay_out(scale, as<float>(buffers[4]), as<float>(buffers[5]), s.images.channels);
  run_tasks(s.team, s.table.count, [&](int64_t i, int thread) {
    char* own = as<char>(workspace) + s.shared_bytes() + thread * s.private_bytes();
    const int64_t index = as<int64_t>(buffers[2])[i];
    auto* rows = reinterpret_cast<int32_t*>(own);
    int32_t *columns = rows + s.images.height, *holes = columns + s.images.width;
    Changes changes{rows, columns, holes, holes + 4 * s.table.steps, 0};
    draw_changes(s, as<double>(buffers[3]), Draws(s.table.seed, s.table.epoch, index), &changes);
    augment_image(s, as<char>(buffers[1]) + index * size, as<char>(buffers[0]) + i * out_size,
                  changes, scale);
  });
  return -1;
}

}  // namespace

const char* plan_augment_images(Plan* plan, const Images& images, const AugmentTable& table) {
  const char* refused = check_images(images);
  if (refused) return refused;
  if (images.height > INT32_MAX || images.width > INT32_MAX) return "expected smaller images";
  const int team = team_size(table.count, table.count * elements(images));
  const AugmentState state{images, table, team};
  return planned(plan, state, run_augment, state.shared_bytes() + team * state.private_bytes());
}

}  // namespace needle::NEEDLE_ISA
