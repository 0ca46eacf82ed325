// Means and sums of squared distances of columns, block by block.
#pragma once
#include <cmath>
#include <cstdint>

#include "isa/isa.h"

namespace needle::NEEDLE_ISA {

// Joins those of rows2 rows to those of the rows1 before them. Source: Chan, Golub, LeVeque,
// "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
template <class A>
inline void join_statistics(A* __restrict mean, A* __restrict square, const A* __restrict mean2,
                            const A* __restrict square2, A rows1, A rows2, int64_t columns) {
  const A part = rows2 / (rows1 + rows2);
  for (int64_t j = 0; j < columns; ++j) {
    const A distance = mean2[j] - mean[j];
    // An infinite mean stays one: a distance from it would make NaN of two.
    const A far = mean[j] * (1 - part) + mean2[j] * part;
    mean[j] = std::fabs(distance) < INFINITY ? mean[j] + distance * part : far;
    square[j] += square2[j] + distance * distance * rows1 * part;
  }
}

}  // namespace needle::NEEDLE_ISA
