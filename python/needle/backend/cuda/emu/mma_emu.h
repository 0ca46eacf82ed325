// Stands for the instructions of tensor cores and of copies to shared memory: see matmul_tc.cu.
#pragma once
#include "cuda_emu.h"

// Done as late as it can be: when the thread waits for it. So a wait that is missing shows.
inline void copy_later(void* to, const void* from, bool there, EMU_WHERE) {
  if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16)
    ::emu::emu_fail("16 bytes are not on a boundary of 16 bytes", file, line);
  ::emu::emu_copy_later(to, there ? from : nullptr, 16);
}
inline void end_copies() { ::emu::emu_end_copies(); }
template <int n>
void wait_for_copies() {
  ::emu::emu_wait_for_copies(n);
}

// Two 16-bit elements of a register.
inline u16 emu_half(u32 pair, int which) { return static_cast<u16>(pair >> 16 * which); }

template <bool turned>
void load_matrices(u32 (&r)[4], const void* line_start, EMU_WHERE) {
  struct Lane {
    u32* r;
    const u16* line;
    static void together(void* const* lanes) {
      const auto of = [&](int i) { return static_cast<const Lane*>(lanes[i]); };
      for (int lane = 0; lane < 32; ++lane)
        for (int matrix = 0; matrix < 4; ++matrix) {
          const int row = lane / 4, pair = lane % 4 * 2;
          const auto element = [&](int i, int j) -> u32 { return of(8 * matrix + i)->line[j]; };
          of(lane)->r[matrix] = turned ? element(pair, row) | element(pair + 1, row) << 16
                                       : element(row, pair) | element(row, pair + 1) << 16;
        }
    }
  };
  if (reinterpret_cast<uintptr_t>(line_start) % 16)
    ::emu::emu_fail("a line of a matrix is not on a boundary of 16 bytes", file, line);
  Lane own = {r, static_cast<const u16*>(line_start)};
  ::emu::emu_together(&own, Lane::together, file, line);
}

template <class T>
void multiply(T, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, EMU_WHERE) {
  struct Lane {
    float* c;
    u32 a[4], b[2];
    static void together(void* const* lanes) {
      const auto of = [&](int i) { return static_cast<const Lane*>(lanes[i]); };
      float x[16][16], y[16][8];
      for (int lane = 0; lane < 32; ++lane)
        for (int half = 0; half < 2; ++half) {
          const int group = lane / 4, pair = lane % 4 * 2 + half;
          for (int i = 0; i < 4; ++i)
            x[group + i % 2 * 8][pair + i / 2 * 8] = to_float(T{emu_half(of(lane)->a[i], half)});
          for (int i = 0; i < 2; ++i)
            y[pair + i * 8][group] = to_float(T{emu_half(of(lane)->b[i], half)});
        }
      for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
          const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
          float sum = of(lane)->c[i];
          for (int k = 0; k < 16; ++k) sum += x[row][k] * y[k][column];
          of(lane)->c[i] = sum;
        }
    }
  };
  Lane own = {c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  ::emu::emu_together(&own, Lane::together, file, line);
}
