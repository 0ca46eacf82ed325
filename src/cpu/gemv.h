// Products of a matrix and a vector: the memory decides, so nothing is packed.
#pragma once
#include "isa.h"

namespace needle::NEEDLE_ISA {

// out[i] = sum of matrix[i, p] * x[p], for `batches` pairs that lie batch_* apart.
struct MatrixVector {
  int64_t count, k;             // of results, of terms
  int64_t row, column, x_step;  // strides
  int64_t batches, batch_matrix, batch_x;
  int matrix_buffer, x_buffer;  // which of the buffers
};

// Returns false if these strides are left to the general product.
bool plan_matrix_vector(Plan* plan, DType dtype, const MatrixVector& product);

}  // namespace needle::NEEDLE_ISA
