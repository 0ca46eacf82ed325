// Matrix products: planning, and who computes what. The result is cut into tiles that fit the
// registers (gemm_tile.h), which gemm_blocks.h goes through.
//
// Threads share nothing but the inputs: each computes rectangles of the result, and maybe rows of
// another's at the end, and packs what it needs for itself. Sharing packed operands would save
// copying, but moving a cache line from core to core costs more than packing it again (measured:
// 128^3 took twice as long).
#include <cstdlib>
#include <new>
#include <thread>

#include "axes.h"
#include "convert.h"
#include "gemm_blocks.h"
#include "gemv.h"
#include "kernels_linear.h"
#include "spans.h"
#include "stream.h"

namespace needle::NEEDLE_ISA {
namespace {

// Steps of k between two visits of a tile, and rows of a block of a, about: so often is packed b
// used. A block of b has 512 KB. Where that is a quarter of the second cache or less, blocks are
// deep and narrow (Intel Granite Rapids: products of 1024 and 2048 take 0.975 to 0.99 of the time).
constexpr struct {
  int64_t k, m;
} kShallow = {256, 1024}, kDeep = {512, 2048};
constexpr int64_t kBlockBytes = 512 << 10;
// A result costs as much as kResultWork multiplications; up to kSerialWork are for one thread.
constexpr int64_t kResultWork = 8;
constexpr int64_t kSerialWork = 64 * 64 * (64 + kResultWork);

struct State : Blocking {
  int64_t m, n, k;
  Strides a, b;
  Axes batch;  // x: a, out: b; the results lie one after the other
  int64_t batches;
  int64_t part_m, part_n, parts_m, parts_n;  // a rectangle for each thread
  int64_t shared_m, shared_n;  // rows or columns of a part that any thread can take; 0: none
  int64_t stages;
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

// Of matrices [.., index], rows i.. of a and c, columns j.. of b and c.
template <class T>
Product<T> product_at(const State& s, void* const* buffers, int64_t index, int64_t i, int64_t j) {
  const Offsets at = s.batch.at(index);
  const void* a = byte_offset(buffers[1], (at.x + i * s.a.row) * s.in_size);
  const void* b = byte_offset(buffers[2], (at.out + j * s.b.column) * s.in_size);
  void* c = byte_offset(buffers[0], (index * s.m * s.n + i * s.n + j) * s.out_size);
  return {s.m - i, s.n - j, s.k, as<T>(a), s.a, as<T>(b), s.b, as<T>(c), s.n, nullptr, nullptr};
}

template <class T>
void use_area(const State& s, Product<T>& o, void* workspace, int thread) {
  o.packed_a = as<T>(workspace) + thread * s.area;
  o.packed_b = o.packed_a + s.packed_a;
}

// Each thread computes rectangles.
template <class T>
int64_t run_blocks(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const int64_t per_matrix = s.parts_m * s.parts_n;
  run_tasks(s.team, s.batches * per_matrix, [&](int64_t task, int thread) {
    const int64_t index = task / per_matrix, part = task % per_matrix;
    Product<T> o =
        product_at<T>(s, buffers, index, part % s.parts_m * s.part_m, part / s.parts_m * s.part_n);
    o.m = least(s.part_m, o.m);
    o.n = least(s.part_n, o.n);
    use_area(s, o, workspace, thread);
    if (s.fetches_next && index + s.team < s.batches) {
      const Product<T> next = product_at<T>(s, buffers, index + s.team, 0, 0);
      o.next_a = {next.a, 1, s.m * s.k, 0};
      o.next_b = {next.b, 1, s.k * s.n, 0};
    }
    if constexpr (std::is_same_v<T, float>) {
      if (s.read) return multiply_halves(s, o, o.a, o.b, o.c);
    }
    multiply(s, o);
  });
  return -1;
}

// ---- threads that help each other

// Each thread has a part of the rows, and goes through it in stages: a slab of rows, a block of k.
// It offers each stage in pieces: some rows of a block of columns. Who has done all its own helps
// the others, from the end of the stages they are in, whose b it then packs for itself.
template <class T>
class Helpers {
 public:
  Helpers(const State& s, const Product<T>& o, Offer* offers) : s_(s), o_(o), offers_(offers) {}

  void run(void* workspace, int thread) const {
    Product<T> o = o_;
    use_area(s_, o, workspace, thread);
    Multiplier<T> multiplier(s_, o);
    for (int64_t stage = 0; stage < s_.stages; ++stage) do_own(multiplier, thread, stage);
    for (bool helped = true; helped; std::this_thread::yield()) {
      helped = false;
      for (int turn = 1; turn < s_.team; ++turn)
        helped |= help(multiplier, (thread + turn) % s_.team);
    }
  }

 private:
  void do_own(Multiplier<T>& multiplier, int thread, int64_t stage) const;
  bool help(Multiplier<T>& multiplier, int owner) const;

  Offer& offer(int thread, int64_t stage) const { return offers_[thread * s_.stages + stage]; }

  // All rows of a stage, the first columns.
  Block slab(int thread, int64_t stage) const {
    const int64_t depth = parts(s_.k, s_.block_k);
    const int64_t first = thread * s_.part_m, last = least(first + s_.part_m, s_.m);
    const int64_t begin = least(first + stage / depth * s_.block_m, last);
    return block_at(s_, o_, begin, least(begin + s_.block_m, last), 0, stage % depth * s_.block_k);
  }
  // The last piece of a block's rows is higher or lower than the others by up to half a tile.
  int64_t per_block(const Block& slab) const {
    const int64_t height = slab.i_end - slab.i_begin;
    return height ? most(1, (height + kTileRows / 2) / s_.shared_m) : 0;
  }
  int64_t pieces(const Block& slab) const { return per_block(slab) * parts(o_.n, s_.block_n); }
  Block piece(const Block& slab, int64_t index) const {
    const int64_t count = per_block(slab), i = index % count;
    const int64_t begin = slab.i_begin + i * s_.shared_m;
    return block_at(s_, o_, begin, i + 1 < count ? begin + s_.shared_m : slab.i_end,
                    index / count * s_.block_n, slab.p);
  }

  const State& s_;
  const Product<T>& o_;
  Offer* offers_;
};

template <class T>
void Helpers<T>::do_own(Multiplier<T>& multiplier, int thread, int64_t stage) const {
  const Block own = slab(thread, stage);
  const int64_t count = pieces(own);
  Offer& now = offer(thread, stage);
  multiplier.begin(own);
  now.open();
  for (int64_t i; (i = now.take_first(count)) >= 0; now.finish())
    multiplier.multiply(piece(own, i), true);
  while (!now.is_finished(count)) std::this_thread::yield();  // the next stage adds to these sums
}

// Does a piece of what the thread has not finished, if there is any. False if there is nothing to
// wait for: it is about to finish, or it has not begun, and who waited might have to do it all.
template <class T>
bool Helpers<T>::help(Multiplier<T>& multiplier, int owner) const {
  int64_t stage = 0, count = 0;
  while (stage < s_.stages && offer(owner, stage).is_finished(count = pieces(slab(owner, stage))))
    ++stage;
  if (stage == s_.stages || !offer(owner, 0).is_open()) return false;
  const bool open = offer(owner, stage).is_open();
  const int64_t i = offer(owner, stage).take_last(count);
  if (i < 0) return !open || stage + 1 < s_.stages;
  multiplier.multiply(piece(slab(owner, stage), i), false);
  offer(owner, stage).finish();
  return true;
}

template <class T>
int64_t run_helping(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  Offer* offers = static_cast<Offer*>(workspace);
  for (int64_t index = 0; index < s.batches; ++index) {
    for (int64_t i = 0; i < s.team * s.stages; ++i) new (offers + i) Offer;
    const Product<T> o = product_at<T>(s, buffers, index, 0, 0);
    const Helpers<T> helpers(s, o, offers);
    parallel(s.team, [&](int thread) { helpers.run(offers + s.team * s.stages, thread); });
  }
  return -1;
}

// Few rows: each thread has a part of the columns, in pieces. Who has done its own takes others'.
template <class T>
int64_t run_columns(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  const int64_t pieces = parts(s.part_n, s.shared_n);
  for (int64_t index = 0; index < s.batches; ++index) {
    Offer offers[kMostThreads];
    for (int i = 0; i < s.team; ++i) offers[i].open();
    parallel(s.team, [&](int thread) {
      const auto take = [&](int owner, int64_t piece) {
        const int64_t j = owner * s.part_n + piece * s.shared_n;
        const int64_t end = least(least(j + s.shared_n, (owner + 1) * s.part_n), s.n);
        if (j >= end) return;
        Product<T> o = product_at<T>(s, buffers, index, 0, j);
        o.n = end - j;
        use_area(s, o, workspace, thread);
        multiply(s, o);
      };
      for (int64_t i; (i = offers[thread].take_first(pieces)) >= 0;) take(thread, i);
      for (int turn = 1; turn < s.team; ++turn) {
        const int owner = (thread + turn) % s.team;
        for (int64_t i; (i = offers[owner].take_last(pieces)) >= 0;) take(owner, i);
      }
    });
  }
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
// all of a; many rows can be left to others, but not their columns (choose_sharing).
template <class T>
void choose_parts(State& s) {
  constexpr int64_t kManyRows = 128;
  constexpr double kHelped = 0.97;
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
    if (along_m * (part_m >= kManyRows ? kHelped : 1) <= along_n)
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
  constexpr int64_t kOften = 192, kOftenB = 48, kLargeB = 32768, kFewSteps = 192;
  const bool must = s.b.column != 1 || (!kMaskedLoads && s.n % kLanes<T> != 0);
  const bool large = s.k * s.part_n * static_cast<int64_t>(sizeof(T)) >= kLargeB;
  // Even a few rows, if b's are far: it is fetched ahead while it is laid out, and two tiles do not
  // find it in the first cache else (products 16 x 512 x 2048 and 24 x 768 x 768 take 0.7 to 0.9 of
  // the time, 8 x 1024 x 1024 and 47 x 2048 x 256 0.65; 16 x 1024 x 256 1.0, and 0.97 on Intel
  // Granite Rapids).
  const bool often = s.part_m >= kOftenB;
  const bool few = far(s.b) && (s.part_m > 2 * kTileRows || s.k > kFewSteps);
  s.pack_b = must ? kPackedBefore : large && (often || few) ? kPackedOnReading : kInPlace;
  const auto block = second_cache_bytes() >= 4 * kBlockBytes ? kDeep : kShallow;
  const int64_t row_bytes = block.k * static_cast<int64_t>(sizeof(T));
  s.block_k = even(s.k, block.k, 4);
  // Few rows: columns that stay in the first cache until the last of them. If all columns fill at
  // most half of the second: one block, so that nothing is packed twice and a not kept.
  const bool all = s.a.row != 1 && s.part_n <= second_cache_bytes() / (2 * row_bytes);
  const int64_t columns = s.part_m <= 2 * kTileRows ? kTileColumns<T>
                          : all                     ? s.part_n
                                                    : kBlockBytes / row_bytes;
  s.block_n = even(s.part_n, columns, kTileColumns<T>);
  const bool must_a = s.a.row != 1 && s.a.column != 1;
  const bool pack_a = must_a || (far(s.a) && s.block_n >= kOften);
  s.pack_a = !pack_a ? kInPlace : s.a.row == 1 ? kPackedBefore : kPackedOnReading;
  s.keep_a = s.pack_a == kPackedBefore || s.part_n > s.block_n;
  s.block_m = even(s.part_m, s.keep_a || !s.pack_a ? block.m : s.part_m, kTileRows);
  s.packed_a = s.pack_a ? round_up((s.keep_a ? s.block_m : kTileRows) * s.block_k, 16) : 0;
  s.packed_b = s.pack_b ? s.block_n * s.block_k : 0;
}

// A thread whose processor is slower for a while leaves rows to the others, or columns if there are
// few rows. (Intel Sapphire Rapids, a virtual machine that others share: of the time of one part
// for each thread, products of 512 to 2048 take 0.92 to 1.0, 1024 x 256 x 128 0.96 to 0.99, 16 x
// 1024 x 256 0.88.)
template <class T>
void choose_sharing(State& s) {
  constexpr int64_t kLeastWork = 1 << 20, kLeastOfFew = 1 << 18;
  s.shared_m = s.shared_n = 0;
  if (s.team == 1 || s.batches >= s.team || s.read) return;
  if (s.parts_n > 1) {
    if (s.part_m > 2 * kTileRows || s.pack_a) return;  // each piece would pack a again
    const int64_t width = round_up(parts(kLeastOfFew, s.m * s.k), kTileColumns<T>);
    if (s.part_n >= 2 * width) s.shared_n = width;
    return;
  }
  const int64_t work = kTileRows * s.block_n * s.block_k;
  const int64_t height = most(1, kLeastWork / work) * kTileRows;
  if (least(s.part_m, s.block_m) >= 2 * height) s.shared_m = height;
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
  choose_sharing<T>(s);
  s.fetches_next = can_fetch_next<T>(s);
  s.area = s.packed_a + s.packed_b;
  if (s.read)
    s.area += round_up(s.part_m * s.k, 16) + round_up(s.k * s.part_n, 16) + s.part_m * s.part_n;
  s.area = round_up(s.area, 16) + (s.area ? 16 : 0);
  plan->run = s.shared_m ? run_helping<T> : s.shared_n ? run_columns<T> : run_blocks<T>;
  s.stages = s.shared_m ? parts(s.part_m, s.block_m) * parts(s.k, s.block_k) : 0;
  plan->workspace = s.team * (s.stages * sizeof(Offer) + s.area * static_cast<int64_t>(sizeof(T)));
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
