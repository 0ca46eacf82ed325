// Products of a matrix and a vector, or few: the memory decides, so the matrix is not packed.
#pragma once
#include "isa/isa.h"

namespace needle::NEEDLE_ISA {

// out[i, j] = sum of matrix[i, p] * x[p, j], for `batches` pairs that lie batch_* apart.
struct MatrixVector {
  int64_t count, k;             // of results of a vector, of terms
  int64_t row, column, x_step;  // strides
  int64_t batches, batch_matrix, batch_x;
  int matrix_buffer, x_buffer;                             // which of the buffers
  int64_t few = 1, x_next = 0, out_row = 1, out_next = 0;  // vectors, and their strides
};

// Returns false if these strides, or so many vectors, are left to the general product.
bool plan_matrix_vector(Plan* plan, DType dtype, const MatrixVector& product);

}  // namespace needle::NEEDLE_ISA
