// Matrix products of 16-bit floats on tensor cores, summed in float32. A block computes 128 rows by
// 128 or 256 columns, each of its warps 64 x 64 elements. Tiles of the operands lie in shared
// memory as the operands lie in memory, kStages of them, so that those needed later are on their
// way while one is multiplied.
//
// A line of a tile is cut into pieces of 16 bytes, which are what is copied (where addresses allow
// it: `wide`) and what ldmatrix reads, 8 lines at a time. Pieces change places within their line
// (turn), so that neither meets twice in a bank.
#include "prelude.cuh"

#ifdef NEEDLE_EMULATOR
#include "mma_emu.h"
#else
__device__ inline u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}
// 16 bytes to shared memory, later; zeros if they are not there.
__device__ inline void copy_later(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n>  // until at most the last n groups are still being copied
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}
// Four matrices of 8 x 8 for a warp; each lane gives the address of one line. Of each matrix a lane
// gets two elements: line lane / 4, places lane % 4 * 2 and the next; or, turned, their
// transpose's.
template <bool turned>
__device__ inline void load_matrices(u32 (&r)[4], const void* line) {
  if (turned) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(line))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(line))
                 : "memory");
  }
}
// sums [16, 8] += a [16, 16] b [16, 8]
#define MULTIPLY(T, name)                                                               \
  __device__ inline void multiply(T, float (&c)[4], const u32(&a)[4], u32 b0, u32 b1) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                 \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));       \
  }
MULTIPLY(bf16, "bf16")
MULTIPLY(f16, "f16")
#undef MULTIPLY
#endif

struct Sizes {
  i64 m, n, k;
  i64 a_row, a_column, b_row, b_column, out_row, out_column;
};

constexpr int kRows = 128, kDepth = 32, kStages = 4, kPiece = 8;
constexpr int kWarp = 64, kStep = 16;  // across; elements that one multiplication takes
constexpr int kFragments = kWarp / kStep;
constexpr unsigned kGroup = 16;  // rows of tiles

// One operand's tile, `across` x depth, dense along depth (deep) or across.
template <class T, bool deep, bool wide, int across, int threads>
struct Tile {
  static constexpr int kLine = deep ? kDepth : across, kElements = across * kDepth;
  static constexpr int kAtOnce = wide ? kPiece : 1, kEach = kElements / kAtOnce / threads;
  static constexpr int kPieces = kLine / kAtOnce, kLinesApart = threads / kPieces;
  const T* own;  // this thread's first element of the next tile
  i64 step, advance;
  int line, along, left;

  // source: the block's first element at k = 0; end: how many lines or columns there are.
  __device__ Tile(const T* source, i64 across_step, i64 depth_step, i64 end) {
    line = static_cast<int>(threadIdx.x) / kPieces;
    along = static_cast<int>(threadIdx.x) % kPieces * kAtOnce;
    own = source + (deep ? line * across_step + along * depth_step
                         : line * depth_step + along * across_step);
    step = kLinesApart * (deep ? across_step : depth_step);
    advance = kDepth * depth_step;
    left = static_cast<int>(end < across ? end : across);
  }
  // Where in a tile an element is.
  static __device__ int place(int line, int along) {
    const int turn = deep ? line / 2 % 4 : line % 8;
    return line * kLine + (along ^ (turn * kPiece));
  }
  // Asks for the next tile; elements from k_end on are zeros.
  __device__ void fetch(T* tile, i64 k_end) {
    const int k_left = static_cast<int>(k_end < kDepth ? k_end : kDepth);
#pragma unroll(wide ? kEach : 8)
    for (int i = 0; i < kEach; ++i) {
      const int to_line = line + i * kLinesApart;
      const bool there = (deep ? to_line : along) < left && (deep ? along : to_line) < k_left;
      T* to = tile + place(to_line, along);
      const T* from = own + i * step;
      if constexpr (wide) {
        copy_later(to, from, there);
      } else {
        *to = there ? *from : T{};
      }
    }
    own += advance;
  }
};

// What a lane reads of an operand's tiles: kFragments fragments, of 16 rows of a, or 16 columns of
// b. Matrices 1 and 2 of each change places between a and b: see the fragments of mma.m16n8k16.
template <class Tile, bool deep, bool is_a>
struct Reader {
  int first;

  __device__ explicit Reader(int across) {
    const int lane = threadIdx.x % 32, low = lane % 8, a = lane / 8 % 2, b = lane / 16;
    const int line = low + 8 * (deep == is_a ? a : b), along = 8 * (deep == is_a ? b : a);
    first = deep ? Tile::place(line + across, along) : Tile::place(line, along + across);
  }
  template <class T>
  __device__ void read(u32 (&fragments)[kFragments][4], const T* tile, int k) const {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {  // ^: steps along a line, whose pieces are turned
      const int place =
          deep ? (first ^ k) + i * kStep * Tile::kLine : (first ^ (i * kStep)) + k * Tile::kLine;
      load_matrices<!deep>(fragments[i], tile + place);
    }
  }
};

template <class T>
using Fragments = u32[kFragments][4];

// This block's tile of the result: groups of kGroup rows of tiles, each column by column. So blocks
// that run together read few rows and columns, which then are in the cache.
__device__ inline void place_of_block(i64 m, i64 n, int columns, i64& row0, i64& column0) {
  const unsigned rows = static_cast<unsigned>((m + kRows - 1) / kRows);
  const unsigned across = static_cast<unsigned>((n + columns - 1) / columns);
  const unsigned first = blockIdx.x / (kGroup * across) * kGroup,
                 rest = blockIdx.x - first * across;
  const unsigned height = rows - first < kGroup ? rows - first : kGroup;
  row0 = static_cast<i64>(first + rest % height) * kRows;
  column0 = static_cast<i64>(rest / height) * columns;
}

// A warp's 64 x 64 sums through its part of shared memory to the result, in whole lines.
template <class T>
__device__ inline void write(T* out, T* room, const float (&sums)[kFragments][2 * kFragments][4],
                             i64 rows, i64 columns, i64 row_step, i64 column_step) {
  constexpr int kPitch = kWarp + kPiece;  // spreads lines over the banks
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kFragments; ++i)
#pragma unroll
    for (int j = 0; j < 2 * kFragments; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Pack<T, 2> two = {cast<T>(sums[i][j][2 * half]), cast<T>(sums[i][j][2 * half + 1])};
        const int row = i * kStep + 8 * half + lane / 4, column = j * 8 + lane % 4 * 2;
        *reinterpret_cast<Pack<T, 2>*>(room + row * kPitch + column) = two;
      }
  __syncwarp();
  const bool whole = column_step == 1 && row_step % kPiece == 0 &&
                     reinterpret_cast<u64>(out) % (kPiece * sizeof(T)) == 0;
  const int column = lane % 8 * kPiece;
  for (int row = lane / 8; row < kWarp && row < rows; row += 4) {
    const T* from = room + row * kPitch + column;
    T* to = out + row * row_step + column * column_step;
    if (whole && column + kPiece <= columns) {
      *reinterpret_cast<Pack<T, kPiece>*>(to) = *reinterpret_cast<const Pack<T, kPiece>*>(from);
    } else {
      for (int i = 0; i < kPiece && column + i < columns; ++i) to[i * column_step] = from[i];
    }
  }
}

// A block for each tile along grid.x; shared: kStages * (kRows + columns) * kDepth elements.
template <class T, bool a_deep, bool b_deep, bool wide, int columns>
__global__ void __launch_bounds__(columns, 256 / columns)
    matmul_tc(T* out, const T* a, const T* b, Sizes s, Geometry<3> batches) {
  using A = Tile<T, a_deep, wide, kRows, columns>;
  using B = Tile<T, b_deep, wide, columns, columns>;
  constexpr int kStage = A::kElements + B::kElements, kSteps = kDepth / kStep;
  static_assert(kStages * kStage >= columns / 32 * kWarp * (kWarp + kPiece), "room for results");
  static_assert(kSteps == 2, "fragments of one step are read while the other's are multiplied");
  DYNAMIC_SHARED(T, tiles);
  i64 row0, column0;
  place_of_block(s.m, s.n, columns, row0, column0);
  const int warp = threadIdx.x / 32, warp_row = warp % 2 * kWarp, warp_column = warp / 2 * kWarp;
  const Reader<A, a_deep, true> a_reader(warp_row);
  const Reader<B, b_deep, false> b_reader(warp_column);
  const int steps = static_cast<int>((s.k + kDepth - 1) / kDepth);

  for (i64 batch = blockIdx.z; batch < batches.count; batch += gridDim.z) {
    const Offsets<3, i64> at(batches, batch);
    A a_tile(a + at.at[1] + row0 * s.a_row, s.a_row, s.a_column, s.m - row0);
    B b_tile(b + at.at[2] + column0 * s.b_column, s.b_column, s.b_row, s.n - column0);
    const auto fetch = [&](int stage, int step) {
      if (step < steps) {
        T* tile = tiles + stage * kStage;
        const i64 k_end = s.k - static_cast<i64>(step) * kDepth;
        a_tile.fetch(tile, k_end);
        b_tile.fetch(tile + A::kElements, k_end);
      }
      end_copies();  // also of none, so that the count of those on their way is right
    };
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) fetch(stage, stage);
    wait_for_copies<kStages - 1>();
    __syncthreads();
    u32 x[kSteps][kFragments][4], y[kSteps][kFragments][4];
    float sums[kFragments][2 * kFragments][4] = {};
    a_reader.read(x[0], tiles, 0);
    b_reader.read(y[0], tiles + A::kElements, 0);
    int stage = 0;
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const int next = (k + 1) % kSteps, freed = stage;
        if (next == 0) {
          wait_for_copies<kStages - 2>();
          __syncthreads();  // the next tile has arrived, and all reads of this one are done
          stage = stage + 1 == kStages ? 0 : stage + 1;
        }
        const T* tile = tiles + stage * kStage;
        a_reader.read(x[next], tile, next * kStep);
        b_reader.read(y[next], tile + A::kElements, next * kStep);
        if (next == 0) fetch(freed, step + kStages);
#pragma unroll
        for (int i = 0; i < kFragments; ++i)
#pragma unroll
          for (int j = 0; j < 2 * kFragments; ++j)
            multiply(T{}, sums[i][j], x[k][i], y[k][j / 2][j % 2 * 2], y[k][j / 2][j % 2 * 2 + 1]);
      }
    }

    __syncthreads();  // the tiles are free for results
    write(out + at.at[0] + (row0 + warp_row) * s.out_row + (column0 + warp_column) * s.out_column,
          tiles + warp * (kWarp * (kWarp + kPiece)), sums, s.m - row0 - warp_row,
          s.n - column0 - warp_column, s.out_row, s.out_column);
    __syncthreads();
  }
}
