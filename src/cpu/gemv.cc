#include "gemv.h"

#include "axes.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kStrip = 512;  // results of a task: they stay in the cache while columns pass

struct State : MatrixVector {
  int64_t strips;
  int team;
};

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
  for (; i < rows; ++i, matrix += row) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t p = 0; p < k; ++p) sum += matrix[p] * x[p];
    out[i] = sum;
  }
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

template <class T>
int64_t run(const Plan* plan, void* const* buffers, void*) {
  const State& s = state_of<State>(plan);
  run_tasks(s.team, s.batches * s.strips, [&](int64_t task, int) {
    const int64_t batch = task / s.strips, first = task % s.strips * kStrip;
    const int64_t rest = s.count - first, rows = rest < kStrip ? rest : kStrip;
    const T* matrix = as<T>(buffers[s.matrix_buffer]) + batch * s.batch_matrix + first * s.row;
    const T* x = as<T>(buffers[s.x_buffer]) + batch * s.batch_x;
    T* out = as<T>(buffers[0]) + batch * s.count + first;
    if (s.row == 1)
      by_columns(out, matrix, s.column, x, s.x_step, rows, s.k);
    else
      by_rows(out, matrix, s.row, x, rows, s.k);
  });
  return -1;
}

}  // namespace

bool plan_matrix_vector(Plan* plan, DType dtype, const MatrixVector& product) {
  const bool columns = product.row == 1 && product.count >= 16;
  const bool rows = product.column == 1 && product.x_step == 1 && product.row != 1;
  if (!columns && !rows) return false;
  State& s = state_of<State>(plan);
  static_cast<MatrixVector&>(s) = product;
  s.strips = (s.count + kStrip - 1) / kStrip;
  s.team = team_size(s.batches * s.strips, s.batches * s.count * s.k);
  plan->run = dtype == kFloat64 ? run<double> : run<float>;
  plan->workspace = 0;
  return true;
}

}  // namespace needle::NEEDLE_ISA
