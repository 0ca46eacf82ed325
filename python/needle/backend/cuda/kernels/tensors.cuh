// Many tensors in one launch. A block takes a piece of one tensor; the table of tensors is a
// parameter, so that nothing has to be copied to the device.
#pragma once
#include "prelude.cuh"

constexpr i64 kPiece = 1024;

template <int tensors, int pointers>
struct Tensors {
  i64 count;
  i64 first_block[tensors];
  i64 size[tensors];
  void* p[tensors][pointers];
};

struct Piece {
  int tensor;
  i64 begin, end;
  template <class Table>
  __device__ explicit Piece(const Table& t) {
    int low = 0, high = static_cast<int>(t.count) - 1;
    while (low < high) {  // the last tensor that starts at or before this block
      const int middle = (low + high + 1) / 2;
      if (t.first_block[middle] <= static_cast<i64>(blockIdx.x)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    tensor = low;
    begin = (blockIdx.x - t.first_block[low]) * kPiece;
    end = begin + kPiece < t.size[low] ? begin + kPiece : t.size[low];
  }
};
