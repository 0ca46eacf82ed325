// How threads share the product of two matrices, or of many: ProductState holds what planning
// decided.
#pragma once
#include <cstdlib>
#include <new>
#include <thread>
#include <utility>

#include "base/convert.h"
#include "gemm/blocks.h"
#include "base/spans.h"

namespace needle::NEEDLE_ISA {

struct ProductState : Blocking {
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
  bool has_epilogue;                 // which finishes rows (epilogue_of)
  Read<float> read;                  // float16 and bfloat16: a copy in floats is multiplied
  Write<float> write;
};

// ---- tasks: rectangles of the results

// Copies x [rows, columns] to dense floats, line by line along its shorter stride; columns side by
// side stay so. Returns the strides of the copy.
inline Strides copy_to_floats(const ProductState& s, float* out, const void* x, int64_t rows,
                              int64_t columns, Strides from) {
  const bool unit = from.column == 1 || std::abs(from.column) <= std::abs(from.row);
  const bool by_rows = rows == 1 || (columns > 1 && unit);
  const int64_t lines = by_rows ? rows : columns, length = by_rows ? columns : rows;
  const int64_t stride = by_rows ? from.row : from.column;
  const int64_t step = by_rows ? from.column : from.row;
  for (int64_t i = 0; i < lines; ++i)
    s.read(out + i * length, byte_offset(x, i * stride * s.in_size), length, step);
  return by_rows ? Strides{columns, 1} : Strides{1, rows};
}

// The matrix unit reads bfloat16 as they lie, if it can multiply all of them.
template <class M>
void multiply_halves(const ProductState& s, Product<float> o, const void* a, const void* b,
                     void* c) {
  const EpiloguePlan* epilogue = std::exchange(o.epilogue, nullptr);
  float* a_copy = o.packed_b + s.packed_b;
  float* b_copy = a_copy + round_up(s.part_m * s.k, 16);
  float* c_copy = b_copy + round_up(s.k * s.part_n, 16);
  o.c = c_copy;
  o.c_row = o.n;
  bool unfit = !M::kReadsHalves;
  if constexpr (M::kReadsHalves) {
    Product<float> halves = o;
    halves.half_a = as<uint16_t>(a);
    halves.half_b = as<uint16_t>(b);
    halves.unfit = &unfit;
    multiply<M>(s, halves);
  }
  if (unfit) {
    o.a_strides = copy_to_floats(s, a_copy, a, o.m, o.k, s.a);
    o.b_strides = copy_to_floats(s, b_copy, b, o.k, o.n, s.b);
    o.a = a_copy;
    o.b = b_copy;
    multiply<M>(s, o);
  }
  const int64_t at = (as<char>(c) - as<char>(o.buffers[0])) / s.out_size;
  for (int64_t i = 0; i < o.m; ++i) {
    s.write(byte_offset(c, i * s.n * s.out_size), c_copy + i * o.n, o.n);
    if (epilogue) finish_rows(*epilogue, o.buffers, at + i * s.n, 1, o.n);
  }
}

// Of matrices [.., index], rows i.. of a and c, columns j.. of b and c.
template <class T>
Product<T> product_at(const Plan* plan, void* const* buffers, int64_t index, int64_t i, int64_t j) {
  const ProductState& s = state_of<ProductState>(plan);
  const Offsets at = s.batch.at(index);
  const void* a = byte_offset(buffers[1], (at.x + i * s.a.row) * s.in_size);
  const void* b = byte_offset(buffers[2], (at.out + j * s.b.column) * s.in_size);
  void* c = byte_offset(buffers[0], (index * s.m * s.n + i * s.n + j) * s.out_size);
  Product<T> o = {s.m - i, s.n - j, s.k, as<T>(a), s.a, as<T>(b), s.b, as<T>(c), s.n};
  o.epilogue = s.has_epilogue ? &epilogue_of(plan) : nullptr;
  o.buffers = buffers;
  return o;
}

template <class T>
void use_area(const ProductState& s, Product<T>& o, void* workspace, int thread) {
  o.packed_a = as<T>(workspace) + thread * s.area;
  o.packed_b = o.packed_a + s.packed_a;
}

// Each thread computes rectangles, with a class like Multiplier.
template <class M>
int64_t run_blocks(const Plan* plan, void* const* buffers, void* workspace) {
  using T = typename M::Element;
  const ProductState& s = state_of<ProductState>(plan);
  const int64_t per_matrix = s.parts_m * s.parts_n;
  run_tasks(s.team, s.batches * per_matrix, [&](int64_t task, int thread) {
    const int64_t index = task / per_matrix, part = task % per_matrix;
    Product<T> o = product_at<T>(plan, buffers, index, part % s.parts_m * s.part_m,
                                 part / s.parts_m * s.part_n);
    o.m = least(s.part_m, o.m);
    o.n = least(s.part_n, o.n);
    use_area(s, o, workspace, thread);
    if (s.fetches_next && index + s.team < s.batches) {
      const Product<T> next = product_at<T>(plan, buffers, index + s.team, 0, 0);
      o.next_a = {next.a, 1, s.m * s.k, 0};
      o.next_b = {next.b, 1, s.k * s.n, 0};
    }
    if constexpr (std::is_same_v<T, float>) {
      if (s.read) return multiply_halves<M>(s, o, o.a, o.b, o.c);
    }
    multiply<M>(s, o);
  });
  return -1;
}

// ---- many small matrices

// Is each a column of tiles, whose operands are read where they lie, or b packed before?
template <class T>
bool has_small_matrices(const ProductState& s) {
  return s.batches > 1 && !s.read && s.parts_m * s.parts_n == 1 && s.m <= 4 * kTileRows &&
         s.n <= s.tile_columns && s.k <= s.block_k && s.pack_a == kInPlace &&
         s.pack_b != kPackedOnReading;
}

// For the smallest products, preparing a Multiplier takes longer than the tiles themselves.
template <class T>
int64_t run_small(const Plan* plan, void* const* buffers, void* workspace) {
  constexpr int64_t kTaskWork = 1 << 16;
  const ProductState& s = state_of<ProductState>(plan);
  const int64_t per_task = most(1, kTaskWork / (s.m * s.n * s.k)), pitch = panel_pitch<T>(s.n);
  const bool packs = s.pack_b == kPackedBefore;
  run_tasks(s.team, parts(s.batches, per_task), [&](int64_t task, int thread) {
    T* packed = as<T>(workspace) + thread * s.area;
    Tile<T> t;
    t.k = s.k;
    t.a_row = s.a.row;
    t.a_step = s.a.column;
    t.b_step = packs ? pitch : s.b.row;
    t.c_row = t.width = s.n;
    t.add = false;
    t.padded = packs;
    const int64_t end = least(s.batches, (task + 1) * per_task);
    for (int64_t index = task * per_task; index < end; ++index) {
      const Product<T> o = product_at<T>(plan, buffers, index, 0, 0);
      if (packs) pack_panel(packed, pitch, o.b, s.n, s.b.column, s.k, s.b.row);
      t.b = packs ? packed : o.b;
      for (int64_t i = 0, height; i < s.m; i += height) {
        height = tile_height(s.m - i);
        t.a = o.a + i * s.a.row;
        t.c = o.c + i * s.n;
        any_tile_for<T>(height, parts(s.n, kLanes<T>))(t);
      }
      o.finish(0, s.m, 0, s.n, s.k);
    }
  });
  return -1;
}

// ---- threads that help each other

// Each thread has a part of the rows, and goes through it in stages: a slab of rows, a block of k.
// It offers each stage in pieces: some rows of a block of columns. Who has done all its own helps
// the others, from the end of the stages they are in, whose b it then packs for itself.
template <class M>
class Helpers {
 public:
  using T = typename M::Element;
  Helpers(const ProductState& s, const Product<T>& o, Offer* offers)
      : s_(s), o_(o), offers_(offers) {}

  void run(void* workspace, int thread) const {
    Product<T> o = o_;
    use_area(s_, o, workspace, thread);
    M multiplier(s_, o);
    for (int64_t stage = 0; stage < s_.stages; ++stage) do_own(multiplier, thread, stage);
    for (bool helped = true; helped; std::this_thread::yield()) {
      helped = false;
      for (int turn = 1; turn < s_.team; ++turn)
        helped |= help(multiplier, (thread + turn) % s_.team);
    }
  }

 private:
  void do_own(M& multiplier, int thread, int64_t stage) const;
  bool help(M& multiplier, int owner) const;

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
    return height ? most(1, (height + M::kRows / 2) / s_.shared_m) : 0;
  }
  int64_t pieces(const Block& slab) const { return per_block(slab) * parts(o_.n, s_.block_n); }
  Block piece(const Block& slab, int64_t index) const {
    const int64_t count = per_block(slab), i = index % count;
    const int64_t begin = slab.i_begin + i * s_.shared_m;
    return block_at(s_, o_, begin, i + 1 < count ? begin + s_.shared_m : slab.i_end,
                    index / count * s_.block_n, slab.p);
  }

  const ProductState& s_;
  const Product<T>& o_;
  Offer* offers_;
};

template <class M>
void Helpers<M>::do_own(M& multiplier, int thread, int64_t stage) const {
  const Block own = slab(thread, stage);
  const int64_t count = pieces(own);
  Offer& now = offer(thread, stage);
  multiplier.begin(own);
  now.open();
  for (int64_t i; (i = now.take_first(count)) >= 0; now.finish())
    multiplier.multiply(piece(own, i), true);
  while (!now.is_finished(count)) std::this_thread::yield();  // the next stage adds to these sums
}

// Does a piece of the thread's unfinished work, if there is any. False if waiting is useless: the
// thread is about to finish, or has not begun, so that the caller might have to do everything.
template <class M>
bool Helpers<M>::help(M& multiplier, int owner) const {
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

template <class M>
int64_t run_helping(const Plan* plan, void* const* buffers, void* workspace) {
  using T = typename M::Element;
  const ProductState& s = state_of<ProductState>(plan);
  Offer* offers = static_cast<Offer*>(workspace);
  for (int64_t index = 0; index < s.batches; ++index) {
    for (int64_t i = 0; i < s.team * s.stages; ++i) new (offers + i) Offer;
    const Product<T> o = product_at<T>(plan, buffers, index, 0, 0);
    const Helpers<M> helpers(s, o, offers);
    parallel(s.team, [&](int thread) { helpers.run(offers + s.team * s.stages, thread); });
  }
  return -1;
}

// Few rows: each thread has a part of the columns, in pieces. Who has done its own takes others'.
template <class M>
int64_t run_columns(const Plan* plan, void* const* buffers, void* workspace) {
  using T = typename M::Element;
  const ProductState& s = state_of<ProductState>(plan);
  const int64_t pieces = parts(s.part_n, s.shared_n);
  for (int64_t index = 0; index < s.batches; ++index) {
    Offer offers[kMostThreads];
    for (int i = 0; i < s.team; ++i) offers[i].open();
    parallel(s.team, [&](int thread) {
      const auto take = [&](int owner, int64_t piece) {
        const int64_t j = owner * s.part_n + piece * s.shared_n;
        const int64_t end = least(least(j + s.shared_n, (owner + 1) * s.part_n), s.n);
        if (j >= end) return;
        Product<T> o = product_at<T>(plan, buffers, index, 0, j);
        o.n = end - j;
        use_area(s, o, workspace, thread);
        multiply<M>(s, o);
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

}  // namespace needle::NEEDLE_ISA
