// Matrix products. The result is cut into tiles that fit the registers (gemm_tile.h). Small
// products read their operands where they lie; larger ones go through blocks of k and n whose
// operands are packed first (gemm_pack.h), which also takes care of any strides. Two ways to use
// several threads: all of them on one matrix, or each on matrices of its own, if there are many.
#include "axes.h"
#include "convert.h"
#include "gemm_pack.h"
#include "gemm_tile.h"
#include "kernels_linear.h"

namespace needle::NEEDLE_ISA {
namespace {

constexpr int64_t kBlockK = 384;                         // steps of k for which operands are packed
constexpr int64_t kBlockN = 2048;                        // columns
constexpr int64_t kBlockM = 2304;                        // rows
constexpr int64_t kTaskM = 8 * kTileRows, kTaskN = 256;  // the part of a block that a task takes
constexpr int64_t kSmall = 64 * 64 * 64;  // below this many multiplications one thread does it

template <class T, int rows>
MultiplyTile<T> tile_of(int64_t vectors) {
  return vectors == 1 ? multiply_tile<T, rows, 1> : multiply_tile<T, rows, 2>;
}

template <class T>
MultiplyTile<T> choose_tile(int64_t rows, int64_t vectors) {
  switch (rows) {
    case 1:
      return tile_of<T, 1>(vectors);
    case 2:
      return tile_of<T, 2>(vectors);
    case 3:
      return tile_of<T, 3>(vectors);
    case 4:
      return tile_of<T, 4>(vectors);
#if defined(__AVX2__) || !defined(__x86_64__)
    case 5:
      return tile_of<T, 5>(vectors);
    case 6:
      return tile_of<T, 6>(vectors);
#endif
#if defined(__AVX512F__) || !defined(__x86_64__)
    case 7:
      return tile_of<T, 7>(vectors);
    case 8:
      return tile_of<T, 8>(vectors);
#endif
#if defined(__AVX512F__)
    case 9:
      return tile_of<T, 9>(vectors);
    case 10:
      return tile_of<T, 10>(vectors);
    case 11:
      return tile_of<T, 11>(vectors);
    case 12:
      return tile_of<T, 12>(vectors);
#endif
    default:
      return nullptr;
  }
}

struct Strides {
  int64_t row, column;
};

// float16 and bfloat16 operands are first copied, line by line, to dense floats.
struct Lines {
  int64_t count, length, stride, step;
};

struct State {
  int64_t m, n, k;
  Strides a, b;
  Axes batch;  // x: a, out: b; the results lie one after the other
  int64_t batches;
  int64_t block_m, block_n, block_k, task_m, task_n;
  bool pack_a, pack_b;
  bool with_team;  // all threads work on one matrix; else each has matrices of its own
  int team;
  int64_t packed_a, packed_b, area;  // workspace in elements; area: all that one matrix needs
  int64_t in_size, out_size;         // bytes of an element
  Read<float> read;                  // null: operands are used as they are
  Write<float> write;
  Lines lines_a, lines_b;
};

// body(task) for all tasks, by the threads of the surrounding team or by this thread alone.
template <class Body>
void share(bool with_team, int64_t tasks, const Body& body) {
  if (!with_team) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
#pragma omp for schedule(dynamic)
  for (int64_t task = 0; task < tasks; ++task) body(task);
}

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

template <class T>
int64_t panel_pitch(int64_t width) {
  return round_up(width, kLanes<T>);
}

// A block of the product: rows i.., columns j.., steps p.. of k.
struct Block {
  int64_t i, m, j, n, p, k;
};

template <class T>
struct Operands {
  const T* a;
  const T* b;
  T* c;
  T* packed_a;
  T* packed_b;
};

template <class T>
void pack_rows(const State& s, const Operands<T>& o, const Block& block, int64_t task) {
  int64_t i = task * s.task_m;
  const int64_t end = least(i + s.task_m, block.m);
  while (i < end) {
    const int64_t height = tile_height(end - i);
    const T* from = o.a + (block.i + i) * s.a.row + block.p * s.a.column;
    pack_panel(o.packed_a + i * block.k, height, from, height, s.a.row, block.k, s.a.column);
    i += height;
  }
}

template <class T>
void pack_columns(const State& s, const Operands<T>& o, const Block& block, int64_t task) {
  const int64_t j = task * kTileColumns<T>, width = least(kTileColumns<T>, block.n - j);
  const T* from = o.b + block.p * s.b.row + (block.j + j) * s.b.column;
  pack_panel(o.packed_b + j * block.k, panel_pitch<T>(width), from, width, s.b.column, block.k,
             s.b.row);
}

// One task: task_m rows and task_n columns of the block.
template <class T>
void multiply_task(const State& s, const Operands<T>& o, const Block& block, int64_t task) {
  const int64_t row_tasks = parts(block.m, s.task_m);
  const int64_t i_begin = task % row_tasks * s.task_m, j_begin = task / row_tasks * s.task_n;
  const int64_t i_end = least(i_begin + s.task_m, block.m);
  const int64_t j_end = least(j_begin + s.task_n, block.n);
  Tile<T> t;
  t.k = block.k;
  t.c_row = s.n;
  t.add = block.p > 0;
  for (int64_t j = j_begin; j < j_end; j += kTileColumns<T>) {
    t.width = least(kTileColumns<T>, j_end - j);
    const int64_t vectors = parts(t.width, kLanes<T>);
    t.b = s.pack_b ? o.packed_b + j * block.k : o.b + block.p * s.b.row + block.j + j;
    t.b_step = s.pack_b ? panel_pitch<T>(t.width) : s.b.row;
    for (int64_t i = i_begin, height; i < i_end; i += height) {
      height = tile_height(i_end - i);
      t.a = s.pack_a ? o.packed_a + i * block.k
                     : o.a + (block.i + i) * s.a.row + block.p * s.a.column;
      t.a_row = s.pack_a ? 1 : s.a.row;
      t.a_step = s.pack_a ? height : s.a.column;
      t.c = o.c + (block.i + i) * s.n + block.j + j;
      choose_tile<T>(height, vectors)(t);
    }
  }
}

template <class T>
void multiply(const State& s, bool with_team, const Operands<T>& o) {
  Block block;
  for (block.j = 0; block.j < s.n; block.j += s.block_n) {
    block.n = least(s.block_n, s.n - block.j);
    for (block.p = 0; block.p < s.k; block.p += s.block_k) {
      block.k = least(s.block_k, s.k - block.p);
      for (block.i = 0; block.i < s.m; block.i += s.block_m) {
        block.m = least(s.block_m, s.m - block.i);
        const int64_t row_tasks = parts(block.m, s.task_m);
        const int64_t a_tasks = s.pack_a ? row_tasks : 0;
        const int64_t b_tasks = s.pack_b && block.i == 0 ? parts(block.n, kTileColumns<T>) : 0;
        if (a_tasks + b_tasks > 0) {
          share(with_team, a_tasks + b_tasks, [&](int64_t task) {
            if (task < a_tasks)
              pack_rows(s, o, block, task);
            else
              pack_columns(s, o, block, task - a_tasks);
          });
        }
        share(with_team, row_tasks * parts(block.n, s.task_n),
              [&](int64_t task) { multiply_task(s, o, block, task); });
      }
    }
  }
}

// ---- one matrix of the batch, and all of them

void copy_lines(bool with_team, Read<float> read, const Lines& lines, float* out, const void* x,
                int64_t item_size) {
  share(with_team, lines.count, [&](int64_t i) {
    read(out + i * lines.length, byte_offset(x, i * lines.stride * item_size), lines.length,
         lines.step);
  });
}

template <class T>
void multiply_matrix(const State& s, bool with_team, void* const* buffers, int64_t index, T* area) {
  const Offsets at = s.batch.at(index);
  const void* a = byte_offset(buffers[1], at.x * s.in_size);
  const void* b = byte_offset(buffers[2], at.out * s.in_size);
  void* c = byte_offset(buffers[0], index * s.m * s.n * s.out_size);
  Operands<T> o = {as<T>(a), as<T>(b), as<T>(c), area, area + s.packed_a};
  if constexpr (std::is_same_v<T, float>) {
    if (s.read) {
      float* whole_a = o.packed_b + s.packed_b;
      float* whole_b = whole_a + round_up(s.m * s.k, 16);
      float* whole_c = whole_b + round_up(s.k * s.n, 16);
      copy_lines(with_team, s.read, s.lines_a, whole_a, a, s.in_size);
      copy_lines(with_team, s.read, s.lines_b, whole_b, b, s.in_size);
      multiply<T>(s, with_team, {whole_a, whole_b, whole_c, o.packed_a, o.packed_b});
      share(with_team, s.m, [&](int64_t i) {
        s.write(byte_offset(c, i * s.n * s.out_size), whole_c + i * s.n, s.n);
      });
      return;
    }
  }
  multiply(s, with_team, o);
}

template <class T>
int64_t run_blocks(const Plan* plan, void* const* buffers, void* workspace) {
  const State& s = state_of<State>(plan);
  T* area = as<T>(workspace);
  if (!s.with_team) {
    run_tasks(s.team, s.batches, [&](int64_t index, int thread) {
      multiply_matrix(s, false, buffers, index, area + thread * s.area);
    });
    return -1;
  }
#pragma omp parallel num_threads(s.team)
  for (int64_t index = 0; index < s.batches; ++index)
    multiply_matrix(s, true, buffers, index, area);
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

int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }

// Lines along the shorter stride, and the strides of their dense copy.
Lines lines_of(int64_t rows, int64_t columns, Strides& strides) {
  const Strides from = strides;
  if (rows == 1 || (columns > 1 && magnitude(from.column) <= magnitude(from.row))) {
    strides = {columns, 1};
    return {rows, columns, from.row, from.column};
  }
  strides = {1, rows};
  return {columns, rows, from.column, from.row};
}

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
  s.batches = s.batch.total();
  s.in_size = kItemSize[a.dtype];
  s.out_size = kItemSize[out.dtype];
}

// As many parts as of the preferred size, but of equal size.
int64_t even(int64_t n, int64_t preferred, int64_t unit) {
  const int64_t count = parts(n, preferred);
  return count ? round_up(parts(n, count), unit) : unit;
}

template <class T>
void choose_blocks(State& s) {
  const int64_t work = s.m * s.n * s.k;
  s.block_k = even(s.k, kBlockK, 4);
  s.block_n = even(s.n, kBlockN, kTileColumns<T>);
  s.block_m = even(s.m, kBlockM, kTaskM);
  s.task_m = least(s.m, kTaskM);
  s.task_n = kTaskN;
  const bool small = work <= kSmall;
  s.pack_b = s.b.column != 1 || (!kMaskedLoads && s.n % kLanes<T> != 0) || !small;
  s.pack_a = !small;
  s.packed_a = s.pack_a ? round_up(least(s.block_m, s.m) * s.block_k, 16) : 0;
  s.packed_b = s.pack_b ? round_up(s.block_n, kTileColumns<T>) * s.block_k : 0;
  s.team = work * s.batches < kSmall ? 1 : threads();
  s.with_team = s.team > 1 && s.batches < 2 * s.team && !small;
  if (!s.with_team) s.team = static_cast<int>(least(s.team, s.batches));
}

template <class T>
const char* plan_blocks(Plan* plan, State& s) {
  choose_blocks<T>(s);
  s.area = s.packed_a + s.packed_b;
  if (s.read) s.area += round_up(s.m * s.k, 16) + round_up(s.k * s.n, 16) + s.m * s.n;
  s.area = round_up(s.area, 16) + (s.area ? 16 : 0);
  plan->run = run_blocks<T>;
  plan->workspace = s.area * (s.with_team ? 1 : s.team) * static_cast<int64_t>(sizeof(T));
  return nullptr;
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
  if (a.dtype == kFloat64) return plan_blocks<double>(plan, s);
  if (a.dtype != kFloat32) {
    s.read = reader<float>(a.dtype);
    s.write = writer<float>(a.dtype);
    s.lines_a = lines_of(s.m, s.k, s.a);
    s.lines_b = lines_of(s.k, s.n, s.b);
  }
  return plan_blocks<float>(plan, s);
}

}  // namespace needle::NEEDLE_ISA
