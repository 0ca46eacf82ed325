// Matrix products: planning. The result is cut into tiles that fit the registers (tile.h),
// which blocks.h goes through; large ones of float32 go through the matrix unit where there is
// one (amx.h). sharing.h divides the work between threads.
//
// Threads share nothing but the inputs: each computes rectangles of the result, and maybe rows of
// another's at the end, and packs what it needs for itself. Sharing packed operands would save
// copying, but moving a cache line from core to core costs more than packing it again.
#include "gemm/amx.h"
#include "gemm/pairs.h"
#include "gemm/sharing.h"
#include "gemm/gemv.h"
#include "base/table.h"
#include "base/stream.h"

namespace needle::NEEDLE_ISA {
namespace {

// Steps of k between two visits of a tile; about the rows of a block of a, which is how often
// packed b is used; and bytes of a block of b. Where the second cache has 2 MB, blocks are deep and
// narrow and a little larger.
constexpr struct {
  int64_t k, m, bytes;
} kShallow = {256, 1024, 512 << 10}, kDeep = {512, 2048, 768 << 10};
bool by_rows = false;  // see Kernels::set_products
// A result costs as much as kResultWork multiplications; up to kSerialWork are for one thread. With
// AVX-512 these are products up to 64^3; narrower vectors take longer for them, so that a second
// thread pays off earlier.
constexpr int64_t kResultWork = 8;
#if defined(__AVX512F__)
constexpr int64_t kSerialWork = 64 * 64 * (64 + kResultWork);
#else
constexpr int64_t kSerialWork = 36 * 36 * (36 + kResultWork);
#endif

int64_t run_nothing(const Plan*, void* const*, void*) { return -1; }

int64_t run_zeros(const Plan* plan, void* const* buffers, void*) {
  const ProductState& s = state_of<ProductState>(plan);
  std::memset(buffers[0], 0, s.batches * s.m * s.n * s.out_size);
  return -1;
}

// ---- integers, whose sums wrap around: some rows and columns at a time stay in the registers

template <class T>
struct Integers {
  using Wide = std::conditional_t<sizeof(T) < 4, uint32_t, T>;  // uint16_t would become int
  static constexpr int64_t kRows = 4, kColumns = 64 / sizeof(Wide) * 2;

  // c[rows, width] = a b; beyond its rows a is read as its last row, beyond its columns b is 0.
  template <bool whole>
  static void multiply(const ProductState& s, const T* a, const T* b, T* c, int64_t rows,
                       int64_t width) {
    constexpr int64_t kVectors = kColumns / kLanes<Wide>;
    Vector<Wide> sum[kRows][kVectors] = {};
    Wide line[kColumns] = {};
    const T* row[kRows];
    for (int64_t i = 0; i < kRows; ++i) row[i] = a + least(i, rows - 1) * s.a.row;
    for (int64_t p = 0; p < s.k; ++p, b += s.b.row) {
      for (int64_t j = 0; j < (whole ? kColumns : width); ++j)
        line[j] = whole ? b[j] : b[j * s.b.column];
#pragma GCC unroll 4
      for (int64_t i = 0; i < kRows; ++i) {
        const Wide x = row[i][p * s.a.column];
#pragma GCC unroll 8
        for (int64_t j = 0; j < kVectors; ++j) sum[i][j] += x * load(line + j * kLanes<Wide>);
      }
    }
    Wide total[kRows][kColumns];
    std::memcpy(total, sum, sizeof sum);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < width; ++j) c[i * s.n + j] = static_cast<T>(total[i][j]);
  }
};

template <class T>
int64_t run_integers(const Plan* plan, void* const* buffers, void*) {
  using I = Integers<T>;
  const ProductState& s = state_of<ProductState>(plan);
  const int64_t per_matrix = parts(s.m, I::kRows);
  run_tasks(s.team, s.batches * per_matrix, [&](int64_t task, int) {
    const int64_t index = task / per_matrix, i = task % per_matrix * I::kRows;
    const Offsets at = s.batch.at(index);
    const T* a = as<T>(buffers[1]) + at.x + i * s.a.row;
    const T* b = as<T>(buffers[2]) + at.out;
    T* c = as<T>(buffers[0]) + (index * s.m + i) * s.n;
    const int64_t rows = least(I::kRows, s.m - i);
    for (int64_t j = 0; j < s.n; j += I::kColumns) {
      const int64_t width = least(I::kColumns, s.n - j);
      const bool whole = width == I::kColumns && s.b.column == 1;
      (whole ? I::template multiply<true> : I::template multiply<false>)(s, a, b + j * s.b.column,
                                                                         c + j, rows, width);
    }
  });
  return -1;
}

// ---- planning

// Multiplications; below, the bytes and the work that follow from them fit into 63 bits.
constexpr int64_t kMostWork = int64_t{1} << 60;

void read_shapes(ProductState& s, const Operand& out, const Operand& a, const Operand& b) {
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
constexpr int64_t kFar = 512;
bool far(Strides x) { return std::abs(x.row) >= kFar || std::abs(x.column) >= kFar; }

// The cost of reading or packing an element, in multiplications.
struct Reading {
  double a, b;
  bool rows_each;  // a row of tiles for each thread, whatever that takes
};

bool has_large_cache() { return second_cache_bytes() >= 2 << 20; }

// Do two rows of wide tiles go best one to each thread? Each then reads all of b once, out of a
// second cache that is large enough to hold it.
template <class T>
bool gains_by_rows(const ProductState& s) {
  const int64_t part_m = parts(s.m, threads());
  const int64_t b_bytes = s.k * s.n * static_cast<int64_t>(sizeof(T));
  return s.m > kTileRows && tile_height(s.m) <= kWideRows && part_m <= kWideRows &&
         s.b.column == 1 && has_large_cache() && b_bytes <= second_cache_bytes() / 2;
}

// Cuts the results into rectangles, if there are too few matrices to give each thread one: along
// n, or along m, whichever leaves less to the busiest thread. Along m each reads all of b, along n
// all of a; many rows can be left to others, but not their columns (choose_sharing). Parts are
// multiples of `rows`.
template <class T>
void choose_parts(ProductState& s, Reading reading, int64_t rows) {
  constexpr int64_t kManyRows = 128;
  constexpr double kHelped = 0.97;
  const int64_t work = s.m * s.n * (s.k + kResultWork) * s.batches;
  s.team = work <= kSerialWork ? 1 : threads();
  s.part_m = s.m;
  s.part_n = s.n;
  if (s.batches < s.team) {
    const int64_t part_m = even(s.m, parts(s.m, s.team), rows);
    const int64_t part_n = even(s.n, parts(s.n, s.team), kLanes<T>);
    const double along_m = (part_m + reading.b) / static_cast<double>(s.m);
    const double along_n = (part_n + reading.a) / static_cast<double>(s.n);
    if (along_m * (part_m >= kManyRows ? kHelped : 1) <= along_n || reading.rows_each)
      s.part_m = part_m;
    else
      s.part_n = part_n;
  }
  s.parts_m = parts(s.m, s.part_m);
  s.parts_n = parts(s.n, s.part_n);
  s.team = static_cast<int>(least(s.team, s.batches * s.parts_m * s.parts_n));
}

// Packing pays off where lines lie far apart and packed operands are read often enough. The
// tiles of the first rows lay b out as they read it, which costs little; a costs more, because its
// rows become columns.
template <class T>
void choose_packing(ProductState& s) {
  constexpr int64_t kOftenBytes = 768, kOftenB = 48, kLargeB = 32768, kFewSteps = 192;
  constexpr int64_t kSize = sizeof(T), kFarBytes = kFar * 4;
  const bool must = s.b.column != 1 || (!kMaskedLoads && s.n % kLanes<T> != 0);
  const int64_t b_bytes = s.k * s.part_n * kSize;
  const bool large = b_bytes >= kLargeB;
  // Two rows of tiles, if b's lines are far apart: without packing the second row does not find
  // them in the first cache. It does find them in a large second cache, where b is read in place.
  const bool second_has_b = b_bytes <= second_cache_bytes() / 2;
  const bool often = s.part_m >= kOftenB;
  const bool few = far(s.b) && s.part_m > kWideRows && !(has_large_cache() && second_has_b) &&
                   (s.part_m > 2 * kTileRows || s.k > kFewSteps);
  s.pack_b = must ? kPackedBefore : large && (often || few) ? kPackedOnReading : kInPlace;
  s.fetch_b = s.pack_b == kInPlace && far(s.b) && !second_has_b;
  // Few rows read b's lines twice; deep blocks of them do not always stay in the cache until then.
  // (Of all rows, because sums of other blocks would have other bits with other threads.)
  const auto block = has_large_cache() && s.m > 2 * kTileRows && !by_rows ? kDeep : kShallow;
  const int64_t row_bytes = block.k * kSize;
  s.block_k = even(s.k, block.k, 4);
  // Wide tiles only if the rows of every part are cut into such: 16 rows are, 12 behind them not.
  const int64_t last_m = s.m - (s.parts_m - 1) * s.part_m;
  const bool wide = most(tile_height(s.part_m), tile_height(last_m)) <= kWideRows;
  s.tile_columns = wide ? kWideVectors * kLanes<T> : kTileColumns<T>;
  // Two rows of tiles: columns that stay in the first cache until the second. If all columns fill
  // at most half of the second cache, or nothing is packed and read again: one block, so that
  // nothing is packed twice and a not kept.
  const bool one_row = s.part_m <= kTileRows && s.pack_b == kInPlace;
  const bool all = one_row || (s.a.row != 1 && s.part_n <= second_cache_bytes() / (2 * row_bytes));
  const int64_t columns = s.part_m <= 2 * kTileRows && !one_row ? s.tile_columns
                          : all                                 ? s.part_n
                                                                : block.bytes / row_bytes;
  s.block_n = even(s.part_n, columns, s.tile_columns);
  const bool must_a = s.a.row != 1 && s.a.column != 1;
  // Whether steps of k lie far apart depends on their distance in bytes, not in elements.
  const bool far_a = far(s.a) || (s.a.row == 1 && std::abs(s.a.column) >= kFarBytes / kSize);
  const bool pack_a = must_a || (far_a && s.block_n >= kOftenBytes / kSize);
  s.pack_a = !pack_a ? kInPlace : s.a.row == 1 ? kPackedBefore : kPackedOnReading;
  s.keep_a = s.pack_a == kPackedBefore || s.part_n > s.block_n;
  s.block_m = even(s.part_m, s.keep_a || !s.pack_a ? block.m : s.part_m, kTileRows);
  s.packed_a = s.pack_a ? round_up((s.keep_a ? s.block_m : kTileRows) * s.block_k, 16) : 0;
  s.packed_b = s.pack_b ? s.block_n * s.block_k : 0;
}

// In pieces of at least `work` multiplications.
void share_rows(ProductState& s, int64_t rows, int64_t work) {
  const int64_t height = most(1, work / (rows * s.block_n * s.block_k)) * rows;
  if (least(s.part_m, s.block_m) >= 2 * height) s.shared_m = height;
}

// A thread whose processor is slower for a while, because others use it too, leaves rows to the
// other threads, or columns if there are few rows. The pieces are few, because each reads a again.
template <class T>
void choose_sharing(ProductState& s) {
  constexpr int64_t kLeastWork = 1 << 20, kLeastOfFew = 1 << 20;
  s.shared_m = s.shared_n = 0;
  if (s.team == 1 || s.batches >= s.team || s.read) return;
  if (s.parts_n > 1) {
    if (s.part_m > 2 * kTileRows || s.pack_a) return;  // each piece would pack a again
    const int64_t width = round_up(parts(kLeastOfFew, s.m * s.k), s.tile_columns);
    if (s.part_n > width) s.shared_n = width;
    return;
  }
  share_rows(s, kTileRows, kLeastWork);
}

// Small matrices that lie in one piece: they and the next ones have room in the second cache.
template <class T>
bool can_fetch_next(const ProductState& s) {
  const auto dense = [](Strides x, int64_t rows, int64_t columns) {
    return (x.column == 1 && x.row == columns) || (x.row == 1 && x.column == rows);
  };
  const int64_t size = (s.m + s.n) * s.k * static_cast<int64_t>(sizeof(T));
  return !s.read && s.parts_m * s.parts_n == 1 && dense(s.a, s.m, s.k) && dense(s.b, s.k, s.n) &&
         size <= second_cache_bytes() / 4;
}

// Which class computes, and the workspace of its threads.
template <class M>
void plan_threads(Plan* plan, ProductState& s) {
  using T = typename M::Element;
  s.area = s.packed_a + s.packed_b;
  if (s.read)
    s.area += round_up(s.part_m * s.k, 16) + round_up(s.k * s.part_n, 16) + s.part_m * s.part_n;
  s.area = round_up(s.area, 16) + (s.area ? 16 : 0);
  plan->run = s.shared_m ? run_helping<M> : s.shared_n ? run_columns<M> : run_blocks<M>;
  s.stages = s.shared_m ? parts(s.part_m, s.block_m) * parts(s.k, s.block_k) : 0;
  const int64_t offers = s.stages * static_cast<int64_t>(sizeof(Offer));
  plan->workspace = product({s.team, least(product({s.area, sizeof(T)}), kMostWork) + offers});
}

template <class T>
void plan_by_vectors(Plan* plan, ProductState& s) {
  choose_parts<T>(s,
                  {s.a.row != 1 ? 3.
                   : far(s.a)   ? 8.
                                : 2.,
                   s.b.column == 1 ? 2. : 8., gains_by_rows<T>(s)},
                  4);
  choose_packing<T>(s);
  choose_sharing<T>(s);
  s.fetches_next = can_fetch_next<T>(s);
  plan_threads<Multiplier<T>>(plan, s);
  if (has_small_matrices<T>(s)) plan->run = run_small<T>;
}

#if defined(NEEDLE_AMX)
bool has_unit = false;
const bool has_pairs = [] {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") != 0;
}();

// Does a unit take less time than vectors do? In cycles of each of two threads, whatever their
// number is, so that the result does not depend on it: of one operand a thread lays out all, of the
// other a half; 16 numbers take 7, or 9 if lines become columns.
template <class Unit>
bool unit_gains(const ProductState& s) {
  constexpr double kVectorsPerCycle = 32;
  const auto layout = [](int64_t numbers, int64_t along) {
    return 0.75 * static_cast<double>(numbers) * (along == 1 ? 7 : 9) / 16;
  };
  const double products = 0.5 * static_cast<double>(s.m * s.n * s.k);
  const double whole =
      0.5 * static_cast<double>(round_up(s.m, kStripWidth) * round_up(s.n, kStripWidth) *
                                round_up(s.k, kStripSteps));
  return Unit::kPause + layout(s.m * s.k, s.a.column) + layout(s.n * s.k, s.b.column) +
             whole / Unit::kPerCycle <
         products / kVectorsPerCycle;
}

// A block of b fills half of the second cache.
template <class Unit>
bool plan_by_unit(Plan* plan, ProductState& s) {
  using Units = UnitMultiplier<Unit>;
  constexpr int64_t kSteps = 512, kKeptRows = 1024, kPieceWork = 4 << 20;
  constexpr double kReading = 40;
  const auto has_lines = [](Strides x) { return x.row == 1 || x.column == 1; };
  if (!has_lines(s.a) || !has_lines(s.b)) return false;
  if (!unit_gains<Unit>(s)) return false;
  choose_parts<float>(s, {kReading, kReading, false}, Units::kRows);
  s.pack_a = s.pack_b = kPackedBefore;
  s.block_k = even(s.k, kSteps, kStripSteps);
  const int64_t columns = second_cache_bytes() / 2 * kStripSteps /
                          (kStripBytes<Unit::kParts> / kStripWidth * s.block_k);
  s.block_n = even(s.part_n, most(columns, Units::kColumns), Units::kColumns);
  s.keep_a = s.part_n > s.block_n;
  s.block_m = even(s.part_m, s.keep_a ? kKeptRows : s.part_m, Units::kRows);
  s.packed_a = Units::packed_a(s);
  s.packed_b = Units::packed_b(s) + Units::packed_for_vectors(s);
  s.shared_m = s.shared_n = 0;
  if (s.team > 1 && s.batches < s.team && !s.read && s.parts_n == 1)
    share_rows(s, Units::kRows, kPieceWork);
  s.fetches_next = false;
  plan_threads<Units>(plan, s);
  return true;
}
bool plan_by_unit(Plan* plan, ProductState& s, DType dtype) {
  if (dtype == kBFloat16 && has_unit) return plan_by_unit<MatrixUnitParts<1>>(plan, s);
  if (dtype == kBFloat16 && has_pairs && multiplies_pairs()) return plan_by_unit<PairUnit>(plan, s);
  return has_unit && plan_by_unit<MatrixUnitParts<kSplitParts>>(plan, s);
}
#else
bool plan_by_unit(Plan*, ProductState&, DType) { return false; }
#endif

template <class T>
const char* plan_blocks(Plan* plan, ProductState& s, DType dtype) {
  if (!std::is_same_v<T, float> || by_rows || !plan_by_unit(plan, s, dtype))
    plan_by_vectors<T>(plan, s);
  return nullptr;
}

bool plan_vector(Plan* plan, const ProductState& s, DType dtype) {
  if (s.batch.count > 1) return false;
  const Axis batch = s.batch.count ? s.batch.axis[0] : Axis{1, 0, 0};
  const auto by = [&](const MatrixVector& product) {
    return plan_matrix_vector(plan, dtype, product);
  };
  const MatrixVector rows_of_a = {s.m,        s.k,        s.a.row,   s.a.column, s.b.row,
                                  batch.size, batch.x,    batch.out, 1,          2,
                                  s.n,        s.b.column, s.n,       1};
  const MatrixVector columns_of_b = {s.n,        s.k,       s.b.column, s.b.row, s.a.column,
                                     batch.size, batch.out, batch.x,    2,       1,
                                     s.m,        s.a.row,   1,          s.n};
  if (s.n == 1) return by(rows_of_a);
  if (s.m == 1) return by(columns_of_b);
  return by(rows_of_a) || by(columns_of_b);
}

void plan_integers(Plan* plan, ProductState& s) {
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
}

const char* finished_later(Plan* plan, const EpiloguePlan* epilogue) {
  if (epilogue) finish_later(plan, *epilogue);
  return nullptr;
}

// Tiles finish their rows; other results are finished at the end.
const char* plan_product(Plan* plan, const Operand& out, const Operand& a, const Operand& b,
                         bool add, const EpiloguePlan* epilogue) {
  if (out.ndim < 2 || a.ndim != out.ndim || b.ndim != out.ndim) return "matmul: expected matrices";
  if (a.dtype != b.dtype || a.dtype != out.dtype) return "matmul: dtypes differ";
  if (a.dtype == kBool) return "matmul: not defined for bool";
  ProductState& s = state_of<ProductState>(plan);
  read_shapes(s, out, a, b);
  s.add = add;
  plan->workspace = 0;
  const int64_t work = product({s.m, s.n, s.k, s.batches});
  if (work >= kMostWork) return "matmul: 2^60 multiplications or more";
  if (work == 0) {
    plan->run = add ? run_nothing : run_zeros;
    return finished_later(plan, epilogue);
  }
  if (!is_floating(a.dtype)) {
    plan_integers(plan, s);
    return finished_later(plan, epilogue);
  }
  s.read = nullptr;
  if (kItemSize[a.dtype] >= 4 && !by_rows && !add && plan_vector(plan, s, a.dtype))
    return finished_later(plan, epilogue);
  s.has_epilogue = epilogue;
  if (epilogue) epilogue_of(plan) = *epilogue;
  if (a.dtype == kFloat64) return plan_blocks<double>(plan, s, a.dtype);
  if (a.dtype != kFloat32) {
    s.read = reader<float>(a.dtype);
    s.write = writer<float>(a.dtype);
  }
  return plan_blocks<float>(plan, s, a.dtype);
}

}  // namespace

template <>
MultiplyTile<float> shared_tile(int64_t rows, int64_t vectors) {
  return any_tile_for<float>(rows, vectors);
}
template <>
MultiplyTile<double> shared_tile(int64_t rows, int64_t vectors) {
  return any_tile_for<double>(rows, vectors);
}

void set_products(int32_t on) { by_rows = on != 0; }

void use_matrix_unit([[maybe_unused]] bool on) {
#if defined(NEEDLE_AMX)
  has_unit = on;
#endif
}

const char* plan_matmul(Plan* plan, const Operand& out, const Operand& a, const Operand& b) {
  return plan_product(plan, out, a, b, false, nullptr);
}

const char* plan_matmul_add(Plan* plan, const Operand& out, const Operand& a, const Operand& b) {
  if (a.dtype != kFloat32 && a.dtype != kFloat64) return "matmul_add: float32 or float64";
  if (out.ndim != 2) return "matmul_add: expected two matrices";
  return plan_product(plan, out, a, b, true, nullptr);
}

const char* plan_matmul_epilogue(Plan* plan, const Operand& out, const Operand& a, const Operand& b,
                                 const Epilogue& epilogue) {
  static_assert(sizeof(ProductState) + sizeof(EpiloguePlan) <= kPlanBytes);
  if (out.ndim < 2) return "matmul: expected matrices";
  EpiloguePlan finishing;
  if (const char* problem = plan_epilogue(&finishing, out, epilogue)) return problem;
  return plan_product(plan, out, a, b, false, &finishing);
}

}  // namespace needle::NEEDLE_ISA
