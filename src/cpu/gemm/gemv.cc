#include "gemm/gemv.h"

#include "base/axes.h"
#include "isa/lanes.h"
#include "base/spans.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kStrip = 512;  // results of a task: they stay in the cache while columns pass

constexpr int64_t kRun = 4096;     // terms that are added one after the other
constexpr int64_t kPiece = 32768;  // terms of a task, where rows are few and long
constexpr int64_t kFewRows = 8;

struct State : MatrixVector {
  int64_t strips, strip, pieces;  // of results, results of each; of terms
  int team;
};

// Runs are added as a tree: the error grows with the logarithm of their number.
template <class T>
T dot(const T* x, const T* y, int64_t n) {
  if (n > kRun) {
    const int64_t half = round_up(n / 2, kRun);
    const T first = dot(x, y, half);
    return first + dot(x + half, y + half, n - half);
  }
  return sum_vectors<T>(n,
                        [&](int64_t i, auto part) { return part.load(x + i) * part.load(y + i); });
}

// Rows are contiguous: four dot products at a time share their reads of x.
template <class T>
void by_rows(T* out, const T* matrix, int64_t row, const T* x, int64_t rows, int64_t k) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4, matrix += 4 * row) {
    T sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
#pragma omp simd reduction(+ : sum0, sum1, sum2, sum3)
    for (int64_t p = 0; p < k; ++p) {
      sum0 += matrix[p] * x[p];
      sum1 += matrix[p + row] * x[p];
      sum2 += matrix[p + 2 * row] * x[p];
      sum3 += matrix[p + 3 * row] * x[p];
    }
    out[i] = sum0;
    out[i + 1] = sum1;
    out[i + 2] = sum2;
    out[i + 3] = sum3;
  }
  for (; i < rows; ++i, matrix += row) out[i] = dot(matrix, x, k);
}

// Columns are contiguous: out gathers multiples of four columns at a time.
template <class T>
void by_columns(T* __restrict out, const T* matrix, int64_t column, const T* x, int64_t x_step,
                int64_t rows, int64_t k) {
  for (int64_t i = 0; i < rows; ++i) out[i] = 0;
  int64_t p = 0;
  for (; p + 4 <= k; p += 4, matrix += 4 * column) {
    const T x0 = x[p * x_step], x1 = x[(p + 1) * x_step];
    const T x2 = x[(p + 2) * x_step], x3 = x[(p + 3) * x_step];
    const T *c0 = matrix, *c1 = c0 + column, *c2 = c1 + column, *c3 = c2 + column;
    for (int64_t i = 0; i < rows; ++i)
      out[i] += (x0 * c0[i] + x1 * c1[i]) + (x2 * c2[i] + x3 * c3[i]);
  }
  for (; p < k; ++p, matrix += column)
    for (int64_t i = 0; i < rows; ++i) out[i] += x[p * x_step] * matrix[i];
}

// Adds the lanes of each sum to its total. Two sums share a vector from the first step on, four
// from the second.
template <class T, size_t count>
void add_sums(T (&total)[count], const Vector<T> (&sum)[count]) {
  constexpr int kWidth = kLanes<T>, kHalf = kWidth / 2, kApart = count == 4 ? kHalf / 2 : kHalf;
  Vector<T> all = add_halves<T, kHalf>(sum[0], sum[1]);
  if constexpr (count == 4) all = add_halves<T, kApart>(all, add_halves<T, kHalf>(sum[2], sum[3]));
#pragma GCC unroll 4
  for (int width = kApart / 2; width > 0; width /= 2) all += exchange<T>(all, width);
  for (size_t r = 0; r < count; ++r) total[r] += all[r % 2 * kWidth / 2 + r / 2 * kApart];
}

// Few vectors times contiguous rows, some at a time: a row is read once for all of them.
template <class T, int few>
void by_rows_of_few(const State& s, T* out, const T* matrix, const T* x, int64_t x_next,
                    int64_t rows) {
  constexpr int64_t kWidth = kLanes<T>, kTogether = kVectorBytes == 64 ? 4 : 2;
  for (int64_t i = 0; i < rows; i += kTogether) {
    const T* row[kTogether];
    for (int64_t r = 0; r < kTogether; ++r) row[r] = matrix + least(i + r, rows - 1) * s.row;
    T total[few][kTogether] = {};
    for (int64_t begin = 0; begin < s.k; begin += kRun) {
      const int64_t end = least(s.k, begin + kRun), whole = end - (end - begin) % kWidth;
      Vector<T> sum[few][kTogether] = {};
      const auto add = [&](int64_t p, auto part) {
        Vector<T> line[kTogether];
#pragma GCC unroll 4
        for (int64_t r = 0; r < kTogether; ++r) line[r] = part.load(row[r] + p);
#pragma GCC unroll 8
        for (int64_t j = 0; j < few; ++j) {
          const Vector<T> factor = part.load(x + j * x_next + p);
#pragma GCC unroll 4
          for (int64_t r = 0; r < kTogether; ++r) sum[j][r] += line[r] * factor;
        }
      };
      for (int64_t p = begin; p < whole; p += kWidth) add(p, Whole<T>());
      if (whole < end) add(whole, Tail<T>(end - whole));
#pragma GCC unroll 8
      for (int64_t j = 0; j < few; ++j) add_sums<T>(total[j], sum[j]);
    }
    for (int64_t r = 0; r < least(kTogether, rows - i); ++r)
      for (int64_t j = 0; j < few; ++j) out[(i + r) * s.out_row + j * s.out_next] = total[j][r];
  }
}

constexpr int kMostVectors = kVectorBytes == 64 ? 6 : 4;  // whose sums the registers hold

template <class T, int few>
int64_t run_few(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  run_tasks(s.team, s.batches * s.strips, [&](int64_t task, int thread) {
    const int64_t batch = task / s.strips, first = task % s.strips * s.strip;
    const T* x = as<T>(buffers[s.x_buffer]) + batch * s.batch_x;
    T* copy = as<T>(workspace) + thread * few * s.k;
    for (int64_t j = 0; s.x_step != 1 && j < few; ++j)
      for (int64_t p = 0; p < s.k; ++p) copy[j * s.k + p] = x[p * s.x_step + j * s.x_next];
    by_rows_of_few<T, few>(s, as<T>(buffers[0]) + batch * s.count * few + first * s.out_row,
                           as<T>(buffers[s.matrix_buffer]) + batch * s.batch_matrix + first * s.row,
                           s.x_step == 1 ? x : copy, s.x_step == 1 ? s.x_next : s.k,
                           least(s.strip, s.count - first));
  });
  return -1;
}

template <class T>
int64_t run(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  run_tasks(s.team, s.batches * s.strips, [&](int64_t task, int) {
    const int64_t batch = task / s.strips, first = task % s.strips * s.strip;
    const int64_t rows = least(s.strip, s.count - first);
    const T* matrix = as<T>(buffers[s.matrix_buffer]) + batch * s.batch_matrix + first * s.row;
    const T* x = as<T>(buffers[s.x_buffer]) + batch * s.batch_x;
    T* out = as<T>(buffers[0]) + batch * s.count + first;
    if (s.row == 1 && s.count > 1)
      by_columns(out, matrix, s.column, x, s.x_step, rows, s.k);
    else
      by_rows(out, matrix, s.row, x, rows, s.k);
  });
  return -1;
}

// Few long rows: threads share the pieces of each, whose sums are added in the order of a tree.
template <class T>
int64_t run_pieces_of_rows(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  T* sums = as<T>(workspace);
  const int64_t bytes = s.batches * (s.count + 1) * s.k * static_cast<int64_t>(sizeof(T));
  const bool backwards = bytes > second_caches_bytes() && next_is_backwards();
  run_spans(s.team, s.batches * s.count * s.pieces, backwards, [&](int64_t task, int) {
    const int64_t row = task / s.pieces, first = task % s.pieces * kPiece;
    const T* matrix = as<T>(buffers[s.matrix_buffer]) + row / s.count * s.batch_matrix;
    const T* x = as<T>(buffers[s.x_buffer]) + row / s.count * s.batch_x;
    sums[task] = dot(matrix + row % s.count * s.row + first, x + first, least(kPiece, s.k - first));
  });
  for (int64_t row = 0; row < s.batches * s.count; ++row) {
    T* own = sums + row * s.pieces;
    for (int64_t step = 1; step < s.pieces; step *= 2)
      for (int64_t i = 0; i + step < s.pieces; i += 2 * step) own[i] += own[i + step];
    as<T>(buffers[0])[row] = own[0];
  }
  return -1;
}

template <class T>
void choose_run(Plan* plan, State& s, bool rows) {
  s.strip = kStrip;
  s.strips = parts(s.count, kStrip);
  s.pieces = rows && s.batches * s.count < kFewRows ? parts(s.k, kPiece) : 1;
  const int64_t work = s.batches * s.count * s.k;
  if (s.pieces > 1) {
    s.team = team_size(s.batches * s.count * s.pieces, work);
    plan->run = run_pieces_of_rows<T>;
    plan->workspace = s.batches * s.count * s.pieces * static_cast<int64_t>(sizeof(T));
    return;
  }
  s.team = team_size(s.batches * s.strips, work);
  plan->run = run<T>;
  plan->workspace = 0;
}

template <class T, int... few>
void choose_few(Plan* plan, State& s, std::integer_sequence<int, few...>) {
  constexpr decltype(plan->run) kRuns[] = {run_few<T, few + 2>...};
  const int64_t work = s.batches * s.count * s.k * s.few;
  s.strip = least(kStrip, round_up(parts(s.count, threads()), 4));
  s.strips = parts(s.count, s.strip);
  s.team = team_size(s.batches * s.strips, work);
  plan->run = kRuns[s.few - 2];
  const int64_t bytes = product({s.team, s.few, s.k, static_cast<int64_t>(sizeof(T))});
  plan->workspace = s.x_step == 1 ? 0 : bytes;
}

// To add the lanes of short sums takes longer than the tiles of the general product.
bool gains_by_few(const MatrixVector& product, int64_t item_size) {
  const int64_t vectors = product.k * item_size / kVectorBytes;
  return product.few <= kMostVectors && product.column == 1 && vectors >= (product.few > 4 ? 8 : 4);
}

}  // namespace

bool plan_matrix_vector(Plan* plan, DType dtype, const MatrixVector& product) {
  const bool columns = product.row == 1 && product.count >= 16;
  const bool rows =
      product.column == 1 && product.x_step == 1 && (product.row != 1 || product.count == 1);
  const bool few = product.few > 1;
  if (few ? !gains_by_few(product, kItemSize[dtype]) : !columns && !rows) return false;
  State& s = state_of<State>(plan);
  static_cast<MatrixVector&>(s) = product;
  constexpr std::make_integer_sequence<int, kMostVectors - 1> kAll;  // from two on
  if (few)
    dtype == kFloat64 ? choose_few<double>(plan, s, kAll) : choose_few<float>(plan, s, kAll);
  else
    dtype == kFloat64 ? choose_run<double>(plan, s, rows) : choose_run<float>(plan, s, rows);
  return true;
}

}  // namespace needle::NEEDLE_ISA
