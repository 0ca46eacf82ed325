// Matrix products: planning, and who computes what. The result is cut into tiles that fit the
// registers (gemm_tile.h), which gemm_blocks.h goes through.
//
// Threads share nothing but the inputs: each computes rectangles of the result and packs what it
// needs for itself. Sharing packed operands would save copying, but moving a cache line from core
// to core costs more than packing it again (measured: 128^3 took twice as long).
#include <cstdlib>

#include "axes.h"
#include "convert.h"
#include "gemm_blocks.h"
#include "gemv.h"
#include "kernels_linear.h"
#include "spans.h"
#include "stream.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kBlockK = 256;   // steps of k between two visits of a tile
constexpr int64_t kBlockM = 1024;  // rows of a block of a, about: so often is packed b used
template <class T>
constexpr int64_t kBlockN = 2048 / sizeof(T);  // columns of a block of b: 512 KB of them
// A result costs as much as kResultWork multiplications; up to kSerialWork are for one thread.
constexpr int64_t kResultWork = 8;
constexpr int64_t kSerialWork = 64 * 64 * (64 + kResultWork);

struct State : Blocking {
  int64_t m, n, k;
  Strides a, b;
  Axes batch;  // x: a, out: b; the results lie one after the other
  int64_t batches;
  int64_t part_m, part_n, parts_m, parts_n;  // a rectangle for each thread
  int64_t piece_m, pieces;                   // of its rows, which it leaves to the others: tasks
  bool fetches_next;  // matrices of a batch: those that a thread multiplies next
  int team;
  int64_t packed_a, packed_b, area;  // workspace in elements; area: all that a thread needs
  int64_t in_size, out_size;         // bytes of an element
  Read<float> read;                  // float16 and bfloat16: a copy in floats is multiplied
  Write<float> write;
};

// ---- tasks: rectangles of the results

// Copies x [rows, columns] to dense floats, line by line along its shorter stride; columns side by
// side stay so. Returns the strides of the copy.
Strides copy_to_floats(const State& s, float* out, const void* x, int64_t rows, int64_t columns,
                       Strides from) {
  const bool unit = from.column == 1 || std::abs(from.column) <= std::abs(from.row);
  const bool by_rows = rows == 1 || (columns > 1 && unit);
  const int64_t lines = by_rows ? rows : columns, length = by_rows ? columns : rows;
  const int64_t stride = by_rows ? from.row : from.column;
  const int64_t step = by_rows ? from.column : from.row;
  for (int64_t i = 0; i < lines; ++i)
    s.read(out + i * length, byte_offset(x, i * stride * s.in_size), length, step);
  return by_rows ? Strides{columns, 1} : Strides{1, rows};
}

void multiply_halves(const State& s, Product<float> o, const void* a, const void* b, void* c) {
  float* a_copy = o.packed_b + s.packed_b;
  float* b_copy = a_copy + round_up(s.part_m * s.k, 16);
  float* c_copy = b_copy + round_up(s.k * s.part_n, 16);
  o.a_strides = copy_to_floats(s, a_copy, a, o.m, o.k, s.a);
  o.b_strides = copy_to_floats(s, b_copy, b, o.k, o.n, s.b);
  o.a = a_copy;
  o.b = b_copy;
  o.c = c_copy;
  o.c_row = o.n;
  multiply(s, o);
  for (int64_t i = 0; i < o.m; ++i)
    s.write(byte_offset(c, i * s.n * s.out_size), c_copy + i * o.n, o.n);
}

template <class T>
int64_t run_blocks(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const int64_t per_matrix = s.parts_m * s.parts_n * s.pieces;
  const void* packed[kMostThreads] = {};  // of which b
  const auto run = [&](int64_t task, int thread) {
    const int64_t index = task / per_matrix, part = task % per_matrix / s.pieces;
    const int64_t first = part % s.parts_m * s.part_m, j = part / s.parts_m * s.part_n;
    const int64_t i = first + task % s.pieces * s.piece_m;
    const int64_t rows = least(s.piece_m, least(first + s.part_m, s.m) - i);
    if (rows <= 0) return;
    const Offsets at = s.batch.at(index);
    const void* a = byte_offset(buffers[1], (at.x + i * s.a.row) * s.in_size);
    const void* b = byte_offset(buffers[2], (at.out + j * s.b.column) * s.in_size);
    void* c = byte_offset(buffers[0], (index * s.m * s.n + i * s.n + j) * s.out_size);
    T* area = as<T>(workspace) + thread * s.area;
    Product<T> o = {
        rows, least(s.part_n, s.n - j), s.k, as<T>(a), s.a, as<T>(b), s.b, as<T>(c), s.n,
        area, area + s.packed_a};
    o.has_b = s.pieces > 1 && packed[thread] == b;
    packed[thread] = b;
    if (s.fetches_next && index + s.team < s.batches) {
      const Offsets next = s.batch.at(index + s.team);
      o.next_a = {as<T>(buffers[1]) + next.x, 1, s.m * s.k, 0};
      o.next_b = {as<T>(buffers[2]) + next.out, 1, s.k * s.n, 0};
    }
    if constexpr (std::is_same_v<T, float>) {
      if (s.read) return multiply_halves(s, o, a, b, c);
    }
    multiply(s, o);
  };
  if (s.pieces > 1)
    run_spans(s.team, s.batches * per_matrix, false, run);
  else
    run_tasks(s.team, s.batches * per_matrix, run);
  return -1;
}

int64_t run_zeros(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  std::memset(buffers[0], 0, s.batches * s.m * s.n * s.out_size);
  return -1;
}

// ---- integers: rows of c gather multiples of the rows of b; sums wrap around

template <class T>
int64_t run_integers(const Plan* plan, void* const* buffers, void*) {
  using Wide = std::conditional_t<sizeof(T) < 4, uint32_t, T>;  // uint16_t would become int
  const State& s = state_of<State>(plan);
  run_tasks(s.team, s.batches * s.m, [&](int64_t task, int) {
    const Offsets at = s.batch.at(task / s.m);
    const T* a = as<T>(buffers[1]) + at.x + task % s.m * s.a.row;
    const T* b = as<T>(buffers[2]) + at.out;
    T* __restrict c = as<T>(buffers[0]) + task * s.n;
    std::memset(c, 0, s.n * sizeof(T));
    for (int64_t p = 0; p < s.k; ++p) {
      const Wide x = a[p * s.a.column];
      const T* row = b + p * s.b.row;
      if (s.b.column == 1)
        for (int64_t j = 0; j < s.n; ++j) c[j] = static_cast<T>(c[j] + x * row[j]);
      else
        for (int64_t j = 0; j < s.n; ++j) c[j] = static_cast<T>(c[j] + x * row[j * s.b.column]);
    }
  });
  return -1;
}

// ---- planning

void read_shapes(State& s, const Operand& out, const Operand& a, const Operand& b) {
  const int d = out.ndim - 2;
  s.m = out.shape[d];
  s.n = out.shape[d + 1];
  s.k = a.shape[a.ndim - 1];
  s.a = {a.strides[d], a.strides[d + 1]};
  s.b = {b.strides[d], b.strides[d + 1]};
  if (s.n == 1) s.b.column = 1;
  s.batch.count = 0;
  for (int i = 0; i < d; ++i)
    if (out.shape[i] != 1)
      s.batch.add(out.shape[i], a.shape[i] == 1 ? 0 : a.strides[i],
                  b.shape[i] == 1 ? 0 : b.strides[i]);
  s.batch.merge();
  // Matrices of a that follow each other and meet the same b are one tall matrix.
  const int last = s.batch.count - 1;
  if (last >= 0 && s.batch.axis[last].out == 0 && s.batch.axis[last].x == s.m * s.a.row) {
    s.m *= s.batch.axis[last].size;
    --s.batch.count;
  }
  if (s.m == 1) s.a.row = 1;
  if (s.k == 1) s.a.column = 1;
  s.batches = s.batch.total();
  s.in_size = kItemSize[a.dtype];
  s.out_size = kItemSize[out.dtype];
}

// As many parts as of the preferred size, but of equal size.
int64_t even(int64_t n, int64_t preferred, int64_t unit) {
  const int64_t count = parts(n, preferred);
  return count ? round_up(parts(n, count), unit) : unit;
}

// Do lines lie so far apart that they fall on each other in the cache and on many pages?
bool far(Strides x) {
  constexpr int64_t kFar = 512;
  return std::abs(x.row) >= kFar || std::abs(x.column) >= kFar;
}

// Cuts the results into rectangles, if there are too few matrices to give each thread one: along
// n, or along m, whichever leaves less to the busiest thread. Along m each reads all of b, along n
// all of a.
template <class T>
void choose_parts(State& s) {
  const int64_t work = s.m * s.n * (s.k + kResultWork) * s.batches;
  s.team = work <= kSerialWork ? 1 : threads();
  s.part_m = s.m;
  s.part_n = s.n;
  if (s.batches < s.team) {
    const int64_t part_m = even(s.m, parts(s.m, s.team), 4);
    const int64_t part_n = even(s.n, parts(s.n, s.team), kLanes<T>);
    // An element that each thread reads or packs, in multiplications.
    const double a_reading = s.a.row != 1 ? 3 : far(s.a) ? 8 : 2;
    const double b_reading = s.b.column == 1 ? 2 : 8;
    const double along_m = (part_m + b_reading) / static_cast<double>(s.m);
    const double along_n = (part_n + a_reading) / static_cast<double>(s.n);
    if (along_m <= along_n)
      s.part_m = part_m;
    else
      s.part_n = part_n;
  }
  s.parts_m = parts(s.m, s.part_m);
  s.parts_n = parts(s.n, s.part_n);
  s.team = static_cast<int>(least(s.team, s.batches * s.parts_m * s.parts_n));
}

// Packing pays where lines lie far apart, and if what is packed is then read often enough. The
// tiles of the first rows lay b out as they read it, which costs little; a costs more, because its
// rows become columns.
template <class T>
void choose_packing(State& s) {
  constexpr int64_t kOften = 192, kOftenB = 48, kLargeB = 32768, kPages = 64;
  const bool must = s.b.column != 1 || (!kMaskedLoads && s.n % kLanes<T> != 0);
  const bool large = s.k * s.part_n * static_cast<int64_t>(sizeof(T)) >= kLargeB;
  s.pack_b = must ? kPackedBefore : large && s.part_m >= kOftenB ? kPackedOnReading : kInPlace;
  // Few rows, and b read in place from many pages: so few of these at a time that the processor
  // finds them at once (products 16 x 1024 x 1024 and 16 x 2048 x 512 take 0.8 to 0.9 of the time).
  const bool by_pages = !s.pack_b && s.part_m <= 2 * kTileRows && far(s.b) && s.k > kBlockK;
  s.block_k = even(s.k, by_pages ? kPages : kBlockK, 4);
  // Few rows: columns that stay in the first cache until the last of them. If all columns fill at
  // most half of the second: one block, so that nothing is packed twice and a not kept.
  const int64_t wide = second_cache_bytes() / (2 * kBlockK * static_cast<int64_t>(sizeof(T)));
  const bool all = s.a.row != 1 && s.part_n <= wide;
  const int64_t columns = s.part_m <= 2 * kTileRows ? kTileColumns<T> : all ? s.part_n : kBlockN<T>;
  s.block_n = even(s.part_n, columns, kTileColumns<T>);
  const bool must_a = s.a.row != 1 && s.a.column != 1;
  const bool pack_a = must_a || (far(s.a) && s.block_n >= kOften);
  s.pack_a = !pack_a ? kInPlace : s.a.row == 1 ? kPackedBefore : kPackedOnReading;
  s.keep_a = s.pack_a == kPackedBefore || s.part_n > s.block_n;
  s.block_m = even(s.part_m, s.keep_a || !s.pack_a ? kBlockM : s.part_m, kTileRows);
  s.packed_a = s.pack_a ? round_up((s.keep_a ? s.block_m : kTileRows) * s.block_k, 16) : 0;
  s.packed_b = s.pack_b ? s.block_n * s.block_k : 0;
}

// A thread whose processor is slower for a while leaves rows to the others. (Intel Sapphire Rapids,
// while somebody else used the second thread of one of two cores: products 256^3 and 1024 x 256 x
// 128 take 0.6 to 0.9 of the time.) Only where b is packed once for all of them: it is one block.
// Columns instead would be read from too many pages at a time: 16 x 1024 x 256 took 1.3 of the
// time.
template <class T>
void choose_pieces(State& s) {
  constexpr int64_t kPieces = 4, kLeastWork = 1 << 20, kLeastRows = kTileRows / 2;
  const bool one_block = s.k <= s.block_k && s.part_n <= s.block_n;
  const int64_t count = least(kPieces, s.part_m * s.part_n * s.k / kLeastWork);
  s.piece_m = s.part_m;
  if (s.team > 1 && s.batches < s.team && s.parts_n == 1 && one_block && !s.read && count > 1) {
    s.piece_m = most(1, s.part_m / count / kTileRows) * kTileRows;
    const auto last = [&] { return s.part_m % s.piece_m; };
    while (last() > 0 && last() < kLeastRows) s.piece_m += kTileRows;
  }
  s.pieces = parts(s.part_m, s.piece_m);
}

// Small matrices that lie in one piece: they and the next ones have room in the second cache.
template <class T>
bool can_fetch_next(const State& s) {
  const auto dense = [](Strides x, int64_t rows, int64_t columns) {
    return (x.column == 1 && x.row == columns) || (x.row == 1 && x.column == rows);
  };
  const int64_t size = (s.m + s.n) * s.k * static_cast<int64_t>(sizeof(T));
  return !s.read && s.parts_m * s.parts_n == 1 && dense(s.a, s.m, s.k) && dense(s.b, s.k, s.n) &&
         size <= second_cache_bytes() / 4;
}

template <class T>
const char* plan_blocks(Plan* plan, State& s) {
  choose_parts<T>(s);
  choose_packing<T>(s);
  choose_pieces<T>(s);
  s.fetches_next = can_fetch_next<T>(s);
  s.area = s.packed_a + s.packed_b;
  if (s.read)
    s.area += round_up(s.part_m * s.k, 16) + round_up(s.k * s.part_n, 16) + s.part_m * s.part_n;
  s.area = round_up(s.area, 16) + (s.area ? 16 : 0);
  plan->run = run_blocks<T>;
  plan->workspace = s.area * s.team * static_cast<int64_t>(sizeof(T));
  return nullptr;
}

bool plan_vector(Plan* plan, const State& s, DType dtype) {
  if ((s.m != 1 && s.n != 1) || s.batch.count > 1) return false;
  const Axis batch = s.batch.count ? s.batch.axis[0] : Axis{1, 0, 0};
  if (s.n == 1)
    return plan_matrix_vector(
        plan, dtype,
        {s.m, s.k, s.a.row, s.a.column, s.b.row, batch.size, batch.x, batch.out, 1, 2});
  return plan_matrix_vector(
      plan, dtype,
      {s.n, s.k, s.b.column, s.b.row, s.a.column, batch.size, batch.out, batch.x, 2, 1});
}

const char* plan_integers(Plan* plan, State& s) {
  s.team = team_size(s.batches * s.m, s.batches * s.m * s.n * s.k);
  switch (s.in_size) {
    case 1:
      plan->run = run_integers<uint8_t>;
      break;
    case 2:
      plan->run = run_integers<uint16_t>;
      break;
    case 4:
      plan->run = run_integers<uint32_t>;
      break;
    default:
      plan->run = run_integers<uint64_t>;
      break;
  }
  return nullptr;
}

}  // namespace

const char* plan_matmul(Plan* plan, const Operand& out, const Operand& a, const Operand& b) {
  if (out.ndim < 2 || a.ndim != out.ndim || b.ndim != out.ndim) return "matmul: wants matrices";
  if (a.dtype != b.dtype || a.dtype != out.dtype) return "matmul: dtypes differ";
  if (a.dtype == kBool) return "matmul: not for bool";
  State& s = state_of<State>(plan);
  read_shapes(s, out, a, b);
  plan->workspace = 0;
  if (s.m * s.n * s.k * s.batches == 0) {
    plan->run = run_zeros;
    return nullptr;
  }
  if (!is_floating(a.dtype)) return plan_integers(plan, s);
  s.read = nullptr;
  if (kItemSize[a.dtype] >= 4 && plan_vector(plan, s, a.dtype)) return nullptr;
  if (a.dtype == kFloat64) return plan_blocks<double>(plan, s);
  if (a.dtype != kFloat32) {
    s.read = reader<float>(a.dtype);
    s.write = writer<float>(a.dtype);
  }
  return plan_blocks<float>(plan, s);
}

}  // namespace needle::NEEDLE_ISA
