// The table of this instruction set, the only symbol that leaves the shared object.
#include "base/table.h"

#include <string_view>

namespace needle::NEEDLE_ISA {

#if defined(__AVX512F__)
constexpr int32_t kVectorBits = 512;
#elif defined(__AVX__)
constexpr int32_t kVectorBits = 256;
#else
constexpr int32_t kVectorBits = 128;
#endif

static Kernels table = {nullptr, kVectorBits,
#define ENTRY(name) name,
                        NEEDLE_KERNELS(ENTRY)
#undef ENTRY
};

}  // namespace needle::NEEDLE_ISA

// The instruction set's, or with "amx" those that use the matrix unit beside it.
extern "C" __attribute__((visibility("default"))) const needle::Kernels* needle_kernels(
    const char* isa) {
  using namespace needle::NEEDLE_ISA;
  use_matrix_unit(std::string_view(isa) == "amx");
  table.isa = isa;
  return &table;
}
