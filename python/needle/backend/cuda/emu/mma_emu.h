// Stands for mma.h: a warp's matrix operations, done by its first lane when all have come.
#pragma once
#include "cuda_emu.h"

struct __nv_bfloat16 {
  unsigned short bits;
};
struct __half {
  unsigned short bits;
};
inline float emu_float(__nv_bfloat16 x) { return to_float(bf16{x.bits}); }
inline float emu_float(__half x) { return to_float(f16{x.bits}); }

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  static_assert(m == 16 && n == 16 && k == 16, "");
  float element[16][16];
};

template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& f, const T* p, unsigned pitch,
                      EMU_WHERE) {
  if (reinterpret_cast<uintptr_t>(p) % 32 || pitch % 8)
    ::emu::emu_fail("a fragment is not on a boundary of 32 bytes", file, line);
  ::emu::emu_warp_barrier(0xffffffffu, file, line);
  if (::emu::lane()) return;
  for (unsigned i = 0; i < 16; ++i)
    for (unsigned j = 0; j < 16; ++j)
      f.element[i][j] = emu_float(is_same<Layout, row_major> ? p[i * pitch + j] : p[j * pitch + i]);
}

inline void fill_fragment(fragment<accumulator, 16, 16, 16, float>& f, float value) {
  for (auto& row : f.element)
    for (float& x : row) x = value;
}

template <class A, class B>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& d, const A& a, const B& b,
              const fragment<accumulator, 16, 16, 16, float>& c, EMU_WHERE) {
  ::emu::emu_warp_barrier(0xffffffffu, file, line);
  if (::emu::lane()) return;
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) {
      float sum = c.element[i][j];
      for (int k = 0; k < 16; ++k) sum += a.element[i][k] * b.element[k][j];
      d.element[i][j] = sum;
    }
}

inline void store_matrix_sync(float* p, const fragment<accumulator, 16, 16, 16, float>& f,
                              unsigned pitch, layout_t layout, EMU_WHERE) {
  ::emu::emu_warp_barrier(0xffffffffu, file, line);
  if (::emu::lane()) return;
  for (unsigned i = 0; i < 16; ++i)
    for (unsigned j = 0; j < 16; ++j)
      p[layout == mem_row_major ? i * pitch + j : j * pitch + i] = f.element[i][j];
}

}  // namespace wmma
}  // namespace nvcuda
