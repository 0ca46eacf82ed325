// The innermost piece of the matrix product: a tile of the result, held in registers.
#pragma once
#include <utility>

#include "isa/lanes.h"

namespace needle::NEEDLE_ISA {

// Tiles have up to kTileRows rows and two vectors of columns, or up to kWideRows and three. Their
// sums, a step's vectors of b and one of a must fit the registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 14, kWideRows = 8, kWideVectors = 3;
#elif defined(__AVX2__)
constexpr int kTileRows = 6, kWideRows = 0, kWideVectors = 2;
#elif defined(__x86_64__)
constexpr int kTileRows = 4, kWideRows = 0, kWideVectors = 2;
#else
constexpr int kTileRows = 8, kWideRows = 0, kWideVectors = 2;
#endif
constexpr int kTileVectors = 2;
template <class T>
constexpr int64_t kTileColumns = kTileVectors * kLanes<T>;

// Heights of the tiles of at most `most` rows that cover `rest` rows: none so low that its sums
// wait for each other.
inline int64_t tile_height(int64_t rest, int64_t most = kTileRows) {
  return rest <= most ? rest : rest < most + most / 2 ? (rest + 1) / 2 : most;
}

// Elements to fetch with each step: of the same matrices, or of the next ones and of rows.
constexpr int64_t kPace = 2, kFetched = 8;

// a: rows a_row apart, steps of k a_step apart; one of the two is 1. b: steps b_step apart, columns
// side by side; unless kMaskedLoads or `padded`, whole vectors of columns can be read. c: rows
// c_row apart, `width` columns.
template <class T>
struct Tile {
  int64_t k;
  const T* a;
  int64_t a_row, a_step;
  const T* b;
  int64_t b_step;
  T* c;
  int64_t c_row, width;
  bool add;              // whether to add to c
  bool fetches = false;  // columns of b, because their rows lie far apart
  bool padded = false;   // columns of b beyond the width can be read: whole vectors
  T* copy = nullptr;     // where to lay the columns of b one after the other, in whole vectors
  // What to fetch, because it is read later: if a_row is 1, pace / 2 * k elements of each,
  const T *next_a = nullptr, *next_b = nullptr;
  int64_t pace = kPace;
  const T* next = nullptr;  // else kFetched k of this
};

// sum[j] += *x * column[j]. With AVX-512 a product can read *x by itself, if `from_memory`: an
// instruction less, but a load more for each other j. It stays one instruction for the processor
// only if the address is a register and a constant: with a second register it becomes two.
template <int vectors>
inline void multiply_add(Vector<float> (&sum)[vectors], const float* x,
                         const Vector<float> (&column)[vectors],
                         [[maybe_unused]] bool from_memory) {
#if defined(__AVX512F__) && !defined(NEEDLE_SANITIZE)  // which does not see what assembler reads
  if (from_memory) {
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j)
      asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum[j]) : "v"(column[j]), "m"(*x));
    return;
  }
#endif
  const float value = *x;
#pragma GCC unroll 8
  for (int j = 0; j < vectors; ++j) sum[j] += value * column[j];
}

template <int vectors>
inline void multiply_add(Vector<double> (&sum)[vectors], const double* x,
                         const Vector<double> (&column)[vectors], bool) {
  const double value = *x;
#pragma GCC unroll 8
  for (int j = 0; j < vectors; ++j) sum[j] += value * column[j];
}

// The rows of a tile of x: as few pointers as reach them. If they are adjacent, that is one; else a
// pointer reaches two, the second one by adding `apart`, so of two only the first can be read by
// products. Products read only elements that no other product reads, so that loads take no longer
// than the products, beside everything that is fetched.
template <class T, int rows, bool adjacent>
struct TileRows {
  static constexpr int kPerPointer = adjacent ? rows : 2;
  const T* pointers[(rows + kPerPointer - 1) / kPerPointer];
  int64_t apart;

  TileRows(const T* x, int64_t row) : apart(adjacent ? 1 : row) {
    for (int i = 0; i * kPerPointer < rows; ++i) pointers[i] = x + i * kPerPointer * apart;
  }

  template <int vectors>
  void multiply_add_all(Vector<T> (&sum)[rows][vectors], const Vector<T> (&column)[vectors]) const {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
      multiply_add<vectors>(sum[i], &pointers[i / kPerPointer][i % kPerPointer * apart], column,
                            vectors == 1 && (adjacent || i % kPerPointer == 0));
  }

  void advance(int64_t step) {
#pragma GCC unroll 8
    for (auto& pointer : pointers) pointer += step;
  }
};

// How b is read: in whole vectors, without masks; with a partial last one; or for the first time,
// fetching it ahead, and maybe copying it for the tiles below.
enum class Columns { kWhole, kPartial, kFetched, kCopied };

template <class T, int vectors, Columns columns>
inline void load_columns(Vector<T> (&column)[vectors], const T* b, int64_t b_step,
                         const Tail<T>& last, T*& copy) {
  constexpr int64_t kWidth = kLanes<T>;
  constexpr int64_t kAhead = 8;  // steps: no prefetcher sees far rows coming
  constexpr bool kFirst = columns == Columns::kFetched || columns == Columns::kCopied;
#pragma GCC unroll 8
  for (int j = 0; j < vectors; ++j)
    column[j] = kMaskedLoads && columns != Columns::kWhole && j == vectors - 1
                    ? last.load(b + j * kWidth)
                    : load(b + j * kWidth);
#pragma GCC unroll 8
  for (int j = 0; kFirst && j < vectors; ++j) __builtin_prefetch(b + kAhead * b_step + j * kWidth);
  if constexpr (columns == Columns::kCopied) {
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j) store(copy + j * kWidth, column[j]);
    copy += vectors * kWidth;
  }
}

template <bool add, class T, int rows, int vectors, class Part>
__attribute__((always_inline)) inline void store_or_add(const Tile<T>& t,
                                                        const Vector<T> (&sum)[rows][vectors],
                                                        const Part& last) {
  T* c = t.c;
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i, c += t.c_row)
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j) {
      T* to = c + j * kLanes<T>;
      if (j + 1 < vectors)
        store(to, add ? sum[i][j] + load(to) : sum[i][j]);
      else
        last.store(to, add ? sum[i][j] + last.load(to) : sum[i][j]);
    }
}

template <class T, int rows, int vectors, class Part>
__attribute__((always_inline)) inline void store_sums(const Tile<T>& t,
                                                      const Vector<T> (&sum)[rows][vectors],
                                                      const Part& last) {
  if (t.add)
    store_or_add<true>(t, sum, last);
  else
    store_or_add<false>(t, sum, last);
}

// Without masks a partial vector takes many instructions.
template <class T, int rows, int vectors>
__attribute__((noinline)) void store_partial_sums(const Tile<T>& t,
                                                  const Vector<T> (&sum)[rows][vectors]) {
  store_sums(t, sum, Tail<T>(t.width - (vectors - 1) * kLanes<T>));
}

// Fetches a little with each step, because a loop in the loop, around the steps that read a line of
// the cache, is slower. The lines of c lie far apart and are needed only at the end; fetched all at
// once they would keep b's waiting, but only long steps with adjacent rows have room for more
// instructions.
template <class T, int rows, int vectors, bool adjacent>
class StepsAhead {
 public:
  explicit StepsAhead(const Tile<T>& t)
      : half_(t.k / 2),
        first_(adjacent && t.next_a ? t.next_a : t.a),
        second_((adjacent && t.next_b ? t.next_b : t.b) - t.pace * half_),
        next_(t.next ? t.next : t.b),
        c_(t.c),
        c_row_(t.c_row),
        pace_(t.pace),
        per_step_((rows << kFraction) / static_cast<uint32_t>(t.k)) {
    for (int i = 0; !kLittle && i < rows; ++i) fetch_row(i);
  }

  void fetch(int64_t p) {
    if constexpr (adjacent)
      __builtin_prefetch((p < half_ ? first_ : second_) + pace_ * p, 0, 2);
    else
      __builtin_prefetch(next_ + p * kFetched, 0, 2);
    if constexpr (kLittle) {
      fetch_row(row_ >> kFraction);
      row_ += per_step_;
    }
  }

 private:
  static constexpr bool kLittle = adjacent && kVectorBytes == 64;
  static constexpr int kFraction = 16;

  void fetch_row(int64_t i) const {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) __builtin_prefetch(c_ + i * c_row_ + j * kLanes<T>, 1);
  }

  const int64_t half_;
  const T *const first_, *const second_, *const next_, *const c_;
  const int64_t c_row_, pace_;
  const uint32_t per_step_;
  uint32_t row_ = 0;
};

// Aligned, because the same instructions were slower where they began at other places in a line of
// the cache.
template <class T, int rows, int vectors, bool adjacent, Columns columns>
__attribute__((noinline, aligned(64))) void sum_tile(const Tile<T>& t) {
  const Tail<T> last(t.width - (vectors - 1) * kLanes<T>);
  Vector<T> sum[rows][vectors];  // not = {}: that becomes a call that clears memory
#pragma GCC unroll 16
  for (auto& row : sum)
#pragma GCC unroll 8
    for (Vector<T>& lanes : row) lanes = Vector<T>{};
  TileRows<T, rows, adjacent> a(t.a, t.a_row);
  StepsAhead<T, rows, vectors, adjacent> ahead(t);
  const T* b = t.b;
  T* copy = t.copy;
  const int64_t k = t.k, a_step = adjacent ? t.a_step : 1, b_step = t.b_step;
#if !defined(NEEDLE_SANITIZE)  // which makes it too large for the compiler
#pragma GCC unroll 2
#endif
  for (int64_t p = 0; p < k; ++p, b += b_step) {
    Vector<T> column[vectors];
    load_columns<T, vectors, columns>(column, b, b_step, last, copy);
    a.multiply_add_all(sum, column);
    a.advance(a_step);
    ahead.fetch(p);
  }
  if constexpr (kMaskedLoads) return store_sums(t, sum, last);
  if (t.width == vectors * kLanes<T>) return store_sums(t, sum, Whole<T>());
  Vector<T> apart[rows][vectors];  // whose address is given away: the sums stay in registers
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j) apart[i][j] = sum[i][j];
  store_partial_sums(t, apart);
}

template <class T, int rows, int vectors, Columns columns>
inline void multiply_columns(const Tile<T>& t) {
  if (t.a_row == 1)
    sum_tile<T, rows, vectors, true, columns>(t);
  else
    sum_tile<T, rows, vectors, false, columns>(t);
}

template <class T, int rows, int vectors>
void multiply_tile(const Tile<T>& t) {
#if defined(NEEDLE_SANITIZE)  // under which each kind of tile compiles for a minute
  constexpr bool masked = kMaskedLoads;
#else
  const bool masked = kMaskedLoads && !t.padded && t.width < vectors * kLanes<T>;
#endif
  if (t.copy)
    multiply_columns<T, rows, vectors, Columns::kCopied>(t);
  else if (t.fetches)
    multiply_columns<T, rows, vectors, Columns::kFetched>(t);
  else if (masked)
    multiply_columns<T, rows, vectors, Columns::kPartial>(t);
  else
    multiply_columns<T, rows, vectors, Columns::kWhole>(t);
}

template <class T>
using MultiplyTile = void (*)(const Tile<T>&);

template <class T, int vectors, int... rows>
MultiplyTile<T> tile_in(int64_t height, std::integer_sequence<int, rows...>) {
  static constexpr MultiplyTile<T> kTiles[] = {multiply_tile<T, rows + 1, vectors>...};
  return kTiles[height - 1];
}

template <class T>
MultiplyTile<T> tile_for(int64_t rows, int64_t vectors) {
  constexpr std::make_integer_sequence<int, kTileRows> kAll;
  return vectors == 1 ? tile_in<T, 1>(rows, kAll) : tile_in<T, 2>(rows, kAll);
}

// Of up to kWideVectors.
template <class T>
MultiplyTile<T> any_tile_for(int64_t rows, int64_t vectors) {
  if constexpr (kWideRows > 0)
    if (vectors > kTileVectors)
      return tile_in<T, kWideVectors>(rows, std::make_integer_sequence<int, kWideRows>());
  return tile_for<T>(rows, vectors);
}

// The same, compiled once for all kernels but the product's own: the tiles take long to compile.
template <class T>
MultiplyTile<T> shared_tile(int64_t rows, int64_t vectors);
template <>
MultiplyTile<float> shared_tile(int64_t rows, int64_t vectors);
template <>
MultiplyTile<double> shared_tile(int64_t rows, int64_t vectors);

}  // namespace needle::NEEDLE_ISA
