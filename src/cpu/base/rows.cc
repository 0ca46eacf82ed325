#include "base/rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "isa/lanes.h"
#include "base/spans.h"
#include "base/stream.h"
#include "base/walk.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int kInputs = 3;
constexpr int64_t kRepeatedBytes = 4096;  // of a buffer with a repeated operand
constexpr int64_t kNearBytes = 8192;      // of rows that are used again and again
constexpr int64_t kBlock = 16384;         // elements of a block, the unit of work of threads
constexpr int64_t kLargeBlock = 65536;    // of large results
// Copies of a computed row that are written together.
constexpr int64_t kSpread = kVectorBytes > 32 ? 1 : 4;
constexpr int64_t kShortRow = 32;  // shorter rows are gathered into tiles instead

struct Rows {
  Walk walk;
  Loop loop;                       // over a row
  Contiguous once;                 // not null: computes the row, which the other then copies
  int operands;                    // of the loop, with the result
  int64_t items[1 + kInputs];      // bytes per element of out and inputs
  int64_t advance[1 + kInputs];    // the same; 0 for one element
  int64_t row_bytes[1 + kInputs];  // from row to row
  int64_t fetched[kInputs];        // bytes per element that come from memory; 0: of an earlier row
  bool repeated[1 + kInputs];      // one element, but the loop reads as many as of the others
  int64_t piece;                   // elements per call of the loop
  int64_t together;                // rows that are taken as one
  Stores stores;
  bool plain;  // a row, or those taken as one, is one call of the loop
};
static_assert(sizeof(Rows) <= kPlanBytes);

// One thread's run over a range of blocks.
class RowRunner {
 public:
  RowRunner(const Rows& rows, void* const* buffers) : rows_(rows), buffers_(buffers) {}

  void run(int64_t first, int64_t end) {
    const int count = rows_.walk.operands;
    char* operands[1 + kInputs];
    position_.seek(rows_.walk, first);
    for (int64_t block = first; block < end; ++block) {
      for (int i = 0; i < count; ++i)
        operands[i] = static_cast<char*>(buffers_[i]) + position_.offsets[i] * rows_.items[i];
      run_block(operands);
      position_.advance(rows_.walk);
    }
    if (rows_.stores == Stores::kStreamed) finish_streaming();
  }

 private:
  void run_block(char** operands) {
    const int count = rows_.operands;
    const int64_t together = std::min(rows_.together, position_.rows);
    if (rows_.once) {
      operands[1] = compute(operands + 1, position_.cols, together);
      if (rows_.plain) return spread(operands, together);
    } else if (rows_.together > 1) {
      repeat_rows(operands, position_.cols, together);
    }
    for (int64_t row = 0; row < position_.rows; row += together) {
      const int64_t n = std::min(together, position_.rows - row) * position_.cols;
      if (rows_.plain) {
        rows_.loop.run(operands[0], reinterpret_cast<void* const*>(operands + 1), n);
      } else {
        run_row(operands, n);
      }
      for (int i = 0; i < count; ++i) operands[i] += together * rows_.row_bytes[i];
    }
  }

  // The computed rows to all of the block.
  void spread(char* const* operands, int64_t together) {
    const int64_t row = position_.cols * rows_.items[0], stride = together * rows_.row_bytes[0];
    char* to = operands[0];
    int64_t left = position_.rows;
    for (; left >= kSpread * together; left -= kSpread * together, to += kSpread * stride)
      spread_rows<kSpread>(to, stride, operands[1], together * row);
    for (; left > 0; left -= together, to += stride)
      spread_rows<1>(to, stride, operands[1], std::min(left, together) * row);
  }

  // `count` copies; loaded vectors stay in registers for all of them.
  template <int64_t count>
  static void spread_rows(char* to, int64_t stride, const char* from, int64_t bytes) {
    constexpr int64_t kHeld = kVectorBytes > 32 ? 4 : 8;  // vectors
    int64_t i = 0;
    for (; i + kHeld * kVectorBytes <= bytes; i += kHeld * kVectorBytes) {
      Vector<float> held[kHeld];
#pragma GCC unroll 8
      for (int64_t j = 0; j < kHeld; ++j)
        held[j] = load(reinterpret_cast<const float*>(from + i + j * kVectorBytes));
#pragma GCC unroll 4
      for (int64_t row = 0; row < count; ++row)
#pragma GCC unroll 8
        for (int64_t j = 0; j < kHeld; ++j)
          store(reinterpret_cast<float*>(to + row * stride + i + j * kVectorBytes), held[j]);
    }
    for (int64_t row = 0; row < count; ++row)
      std::memcpy(to + row * stride + i, from + i, static_cast<size_t>(bytes - i));
  }

  // In pieces, with repeated elements or stores past the caches.
  void run_row(char* const* operands, int64_t n) {
    const int count = rows_.operands;
    char* at[1 + kInputs];
    for (int i = 0; i < count; ++i)
      at[i] = rows_.repeated[i] ? repeat(i, operands[i], n) : operands[i];
    if (rows_.stores == Stores::kFetched)
      return run_fetching(rows_.loop.run, rows_.advance, count - 1, at, n);
    if (rows_.stores == Stores::kStreamed)
      return run_streaming(rows_.loop, rows_.advance, rows_.fetched, count - 1, at, n);
    for (int64_t first = 0; first < n; first += rows_.piece) {
      const int64_t length = std::min(rows_.piece, n - first);
      rows_.loop.run(at[0], reinterpret_cast<void* const*>(at + 1), length);
      for (int i = 0; i < count; ++i) at[i] += length * rows_.advance[i];
    }
  }

  // The row that these inputs give, `together` times; kept for the next block that reads the same.
  char* compute(char* const* inputs, int64_t n, int64_t together) {
    const int count = rows_.walk.operands - 1;
    const int64_t row = n * rows_.items[0], bytes = together * row;
    if (bytes <= computed_ && std::equal(inputs, inputs + count, computed_from_)) return row_;
    rows_.once(row_, reinterpret_cast<void* const*>(inputs), n);
    repeat_start(row_, row, bytes);
    std::copy(inputs, inputs + count, computed_from_);
    computed_ = bytes;
    return row_;
  }

  // Of inputs that come again with each row, as many rows as are taken together.
  void repeat_rows(char** operands, int64_t n, int64_t together) {
    for (int i = 1; i < rows_.operands; ++i)
      if (rows_.row_bytes[i] == 0 && rows_.advance[i] != 0)
        operands[i] = repeated(i, operands[i], n * rows_.items[i], together * n * rows_.items[i]);
  }

  // A buffer filled with an element, as far as n of them need it.
  char* repeat(int operand, const char* element, int64_t n) {
    const int64_t item = rows_.items[operand];
    return repeated(operand, element, item, std::min(n, rows_.piece) * item);
  }

  // A buffer that repeats the same `size` bytes.
  char* repeated(int operand, const char* from, int64_t size, int64_t bytes) {
    char* buffer = repeated_[operand - 1];
    if (filled_from_[operand - 1] == from && filled_bytes_[operand - 1] >= bytes) return buffer;
    filled_from_[operand - 1] = from;
    filled_bytes_[operand - 1] = bytes;
    std::memcpy(buffer, from, static_cast<size_t>(size));
    repeat_start(buffer, size, bytes);
    return buffer;
  }

  static void repeat_start(char* buffer, int64_t size, int64_t bytes) {
    for (int64_t filled = size, more; filled < bytes; filled += more) {
      more = std::min(filled, bytes - filled);
      std::memcpy(buffer + filled, buffer, static_cast<size_t>(more));
    }
  }

  const Rows& rows_;
  void* const* buffers_;
  Position position_;
  const char* filled_from_[kInputs] = {};
  int64_t filled_bytes_[kInputs];
  alignas(64) char repeated_[kInputs][kRepeatedBytes];
  char* computed_from_[kInputs];
  int64_t computed_ = -1;
  alignas(64) char row_[kNearBytes];
};

__attribute__((noinline)) void run_range(const Rows& rows, void* const* buffers, int64_t first,
                                         int64_t end) {
  if (first < end) RowRunner(rows, buffers).run(first, end);
}

// Of n elements of the result.
int64_t bytes_moved(const Rows& rows, int64_t n) {
  const int64_t* fetched = rows.fetched;
  return n * std::accumulate(fetched, fetched + rows.walk.operands - 1, rows.items[0]);
}

int64_t run_rows(const Plan* plan, void* const* buffers, void*) {
  const auto& rows = *reinterpret_cast<const Rows*>(plan->state);
  const int64_t blocks = rows.walk.blocks, n = blocks * rows.walk.rows * rows.walk.cols;
  if (n < kSerial) {
    run_range(rows, buffers, 0, blocks);
    return -1;
  }
  run_pieces(blocks, bytes_moved(rows, n),
             [&](int64_t first, int64_t end) { run_range(rows, buffers, first, end); });
  return -1;
}

// In the two innermost dims.
int64_t blocks_of(const Walk& walk) {
  return (walk.dim(0)[0] + walk.cols - 1) / walk.cols *
         ((walk.dim(1)[0] + walk.rows - 1) / walk.rows);
}

// The loop over a row.
Loop loop_over_row(const Loops& loops, const Walk& walk) {
  const int64_t* cols = walk.dim(0);
  const int inputs = walk.operands - 1;
  uint32_t ones = 0;
  for (int i = 0; i < inputs; ++i) ones |= uint32_t{cols[2 + i] == 0} << i;
  return choose_loop(loops, inputs, ones);
}

// Whether all rows of a result are the same, and the loop computes one from where operands lie.
bool has_equal_rows(const Walk& walk, uint32_t uniform) {
  const int64_t *cols = walk.dim(0), *rows = walk.dim(1);
  bool equal = rows[0] > 1;
  for (int i = 1; i < walk.operands; ++i)
    equal &= rows[1 + i] == 0 && cols[1 + i] == (uniform >> (i - 1) & 1 ? 0 : 1);
  return equal;
}

// So many rows are taken as one, because a few long loops are faster than many short ones. They lie
// one after the other in the operands that have rows of their own; the operand that all rows share
// is repeated in a buffer.
int64_t rows_together(const Walk& walk, const Operand* const* operands, bool equal) {
  const int64_t *cols = walk.dim(0), *rows = walk.dim(1);
  int64_t item = 0;
  for (int i = 0; i < walk.operands; ++i) {
    const bool again = i > 0 && rows[1 + i] == 0;
    if (!again && (cols[1 + i] != 1 || rows[1 + i] != cols[0])) return 1;
    item = std::max(item, kItemSize[operands[i]->dtype]);
  }
  const int64_t buffer = equal ? kNearBytes : kRepeatedBytes;
  const int64_t fit = buffer / (cols[0] * item), used_often = rows[0] / 4;
  return std::max<int64_t>(1, std::min(fit, used_often));
}

bool has_rows(const Walk& walk, int64_t together) {
  const int64_t* dim = walk.dim(0);
  if (dim[0] * together < kShortRow || dim[1] != 1) return false;
  for (int i = 1; i < walk.operands; ++i)
    if (dim[1 + i] != 0 && dim[1 + i] != 1) return false;
  return true;
}

// Rows longer than these bytes are cut: blocks have as many rows of a piece as make up for it.
void cut_rows(Walk* walk, int64_t item) {
  const int64_t *cols = walk->dim(0), *rows = walk->dim(1);
  if (item == 0 || rows[0] == 1 || cols[0] * item <= kNearBytes) return;
  walk->blocks /= blocks_of(*walk);
  walk->cols = kNearBytes / item;
  walk->rows = std::min(rows[0], kBlock / walk->cols);
  walk->blocks *= blocks_of(*walk);
}

// Of an operand that comes again with each row of the others, a piece stays in the first cache
// while it is used for the rows of a block.
void keep_rows_near(Walk* walk, const Operand* const* operands) {
  const int64_t *cols = walk->dim(0), *rows = walk->dim(1);
  int64_t item = 0;
  for (int i = 0; i < walk->operands; ++i)
    if (cols[1 + i] == 1 && rows[1 + i] == 0) item = std::max(item, kItemSize[operands[i]->dtype]);
  cut_rows(walk, item);
}

// By whole vectors: the C library's copies may be narrower. Four are
// loaded before the first is stored: a load waits for a store shortly before it to the same place
// of another page.
template <int64_t item>
void copy_row(void* out, const void* const* inputs, int64_t n) {
  constexpr int64_t kGroup = 4 * kVectorBytes;
  const int64_t bytes = n * item;
  auto* to = static_cast<char*>(out);
  auto* from = static_cast<const char*>(inputs[0]);
  int64_t i = 0;
  for (; i + kGroup <= bytes; i += kGroup) {
    Vector<float> group[4];
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j)
      group[j] = load(reinterpret_cast<const float*>(from + i + j * kVectorBytes));
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j)
      store(reinterpret_cast<float*>(to + i + j * kVectorBytes), group[j]);
  }
  std::memcpy(to + i, from + i, static_cast<size_t>(bytes - i));
}

// Past the caches, by tiles.
template <int64_t item>
void stream_row(void* out, const void* const* inputs, int64_t n) {
  stream(out, inputs[0], n * item);
}

Loop copying(int64_t item) {
  switch (item) {
    case 1:
      return {copy_row<1>, 0, stream_row<1>};
    case 2:
      return {copy_row<2>, 0, stream_row<2>};
    case 4:
      return {copy_row<4>, 0, stream_row<4>};
    default:
      return {copy_row<8>, 0, stream_row<8>};
  }
}

// How the operands advance while the loop runs over a row of them.
void describe_rows(Rows* rows, const Loop& loop, const Operand* const* operands) {
  const int64_t *cols = rows->walk.dim(0), *next = rows->walk.dim(1);
  const int inputs = rows->walk.operands - 1;
  rows->loop = loop;
  rows->once = nullptr;
  rows->operands = 1 + inputs;
  rows->piece = kBlock;
  for (int i = 0; i <= inputs; ++i) {
    const int64_t item = kItemSize[operands[i]->dtype];
    rows->items[i] = item;
    rows->advance[i] = cols[1 + i] * item;
    rows->row_bytes[i] = next[1 + i] * item;
    rows->repeated[i] = i > 0 && cols[1 + i] == 0 && (loop.uniform >> (i - 1) & 1) == 0;
    if (i > 0) rows->fetched[i - 1] = next[1 + i] != 0 ? rows->advance[i] : 0;
    if (rows->repeated[i]) rows->piece = std::min(rows->piece, kRepeatedBytes / item);
  }
}

}  // namespace

// Fetches inputs ahead: the processor itself does not look over a page's end, and hardly ahead of
// stores.
static void fetch_ahead(const char* operand, int64_t bytes) {
  constexpr int64_t kAhead = 4096, kLine = 64;  // bytes
  for (int64_t line = 0; line < bytes; line += kLine) __builtin_prefetch(operand + kAhead + line);
}

// By a loop that stores past the caches itself. It fetches twice as many lines at a time as a tile
// has; with one or four times as many it gains less.
static void run_past(Contiguous loop, const int64_t* items, const int64_t* fetched, int n_inputs,
                     char* const* operands, int64_t n) {
  constexpr int64_t kPiece = 256;  // elements
  char* at[1 + kInputs];
  std::copy(operands, operands + 1 + n_inputs, at);
  for (int64_t first = 0; first < n; first += kPiece) {
    const int64_t count = std::min(kPiece, n - first);
    for (int i = 0; i < n_inputs; ++i) fetch_ahead(at[1 + i], count * fetched[i]);
    loop(at[0], reinterpret_cast<void* const*>(at + 1), count);
    for (int i = 0; i <= n_inputs; ++i) at[i] += count * items[i];
  }
}

void run_streaming(const Loop& loop, const int64_t* items, const int64_t* fetched, int n_inputs,
                   char* const* operands, int64_t n) {
  if (loop.past && is_streamable(operands[0]))
    return run_past(loop.past, items, fetched, n_inputs, operands, n);
  alignas(64) char tile[kStreamTileBytes];
  char* at[1 + kInputs];
  std::copy(operands, operands + 1 + n_inputs, at);
  const bool reads = std::any_of(fetched, fetched + n_inputs, [](int64_t i) { return i != 0; });
  const int64_t tile_size = stream_tile_bytes(reads) / items[0];
  // Where the processor looks ahead itself, only beside a row that comes again.
  const bool fetches = !runs_over_pages() || !std::equal(fetched, fetched + n_inputs, items + 1);
  // Wider inputs are read as often as results as wide: in bursts they would wait for each other.
  const int64_t widest = *std::max_element(items + 1, items + 1 + n_inputs);
  const int64_t piece = std::max<int64_t>(tile_size * items[0] / std::max(widest, items[0]), 1);
  const auto advance = [&](int64_t count) {
    for (int i = 1; i <= n_inputs; ++i) at[i] += count * items[i];
  };
  // The elements before the first aligned address, or all if no element is aligned.
  const int64_t before = (-reinterpret_cast<intptr_t>(at[0]) & (kStreamAlignment - 1)) / items[0];
  for (int64_t first = 0, count; first < n; first += count) {
    count = std::min(first == 0 && before != 0 ? before : tile_size, n - first);
    auto* inputs = reinterpret_cast<void* const*>(at + 1);
    if (is_streamable(at[0])) {
      for (int64_t begin = 0, length; begin < count; begin += length) {
        length = std::min(piece, count - begin);
        for (int i = 0; fetches && i < n_inputs; ++i) fetch_ahead(at[1 + i], length * fetched[i]);
        loop.run(tile + begin * items[0], inputs, length);
        advance(length);
      }
      stream(at[0], tile, count * items[0]);
    } else {
      loop.run(at[0], inputs, count);
      advance(count);
    }
    at[0] += count * items[0];
  }
}

void run_fetching(Contiguous loop, const int64_t* items, int n_inputs, char* const* operands,
                  int64_t n) {
  constexpr int64_t kPiece = 256;  // elements
  char* at[1 + kInputs];
  std::copy(operands, operands + 1 + n_inputs, at);
  for (int64_t first = 0; first < n; first += kPiece) {
    const int64_t count = std::min(kPiece, n - first);
    fetch_ahead(at[0], count * items[0]);
    loop(at[0], reinterpret_cast<void* const*>(at + 1), count);
    for (int i = 0; i <= n_inputs; ++i) at[i] += count * items[i];
  }
}

// A row is computed once and copied.
static void compute_once(Rows* rows, int64_t item) {
  rows->once = rows->loop.run;
  rows->loop = copying(item);
  rows->operands = 2;
  rows->advance[1] = item;
  rows->fetched[0] = 0;
}

bool plan_rows(Plan* plan, const Loops& loops, const Operand& out, const Operand* inputs,
               int32_t n) {
  const Operand* operands[1 + kInputs] = {&out};
  int64_t size = 1;
  for (int d = 0; d < out.ndim; ++d) size *= out.shape[d];
  if (size < kShortRow || n > kInputs) return false;
  for (int i = 0; i < n; ++i) operands[1 + i] = &inputs[i];
  auto* rows = reinterpret_cast<Rows*>(plan->state);
  const int64_t block = size < 16 * kLargeBlock ? kBlock : kLargeBlock;
  if (!plan_walk(&rows->walk, operands, 1 + n, block)) return false;
  const Loop loop = loop_over_row(loops, rows->walk);
  const bool equal = has_equal_rows(rows->walk, loop.uniform);
  rows->together = rows_together(rows->walk, operands, equal);
  if (!has_rows(rows->walk, rows->together)) return false;
  plan->run = run_rows;
  plan->workspace = 0;
  describe_rows(rows, loop, operands);
  const Work work = equal ? Work::kLittle : loops.work;
  rows->stores = stores_of(work, size, out.dtype, bytes_moved(*rows, size));
  // Behind a part of a longer row lies another's part: fetching it would only cost time.
  const bool goes_on = rows->row_bytes[0] == rows->walk.dim(0)[0] * rows->items[0];
  if (rows->stores == Stores::kFetched && !goes_on) rows->stores = Stores::kPlain;
  rows->plain = rows->piece == kBlock && rows->stores == Stores::kPlain;
  if (equal) {
    cut_rows(&rows->walk, kItemSize[out.dtype]);
    compute_once(rows, kItemSize[out.dtype]);
  } else if (rows->stores != Stores::kStreamed) {
    keep_rows_near(&rows->walk, operands);
  }
  return true;
}

}  // namespace needle::NEEDLE_ISA
