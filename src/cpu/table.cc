// The table of this instruction set, the only symbol that leaves the shared object.
#include "elementwise.h"

#if __has_include("kernels_linear.h")
#include "kernels_linear.h"
#define LINEAR(kernel) kernel
#else  // until those kernels are there
#define LINEAR(kernel) nullptr
#endif

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

namespace needle::NEEDLE_ISA {

#if defined(__AVX512F__)
constexpr int32_t kVectorBits = 512;
#elif defined(__AVX__)
constexpr int32_t kVectorBits = 256;
#else
constexpr int32_t kVectorBits = 128;
#endif

static const Kernels kTable = {
    TEXT(NEEDLE_ISA),
    kVectorBits,
    set_threads,
    contiguous,
    plan_elementwise,
    plan_fused,
    plan_copy,
    plan_fill,
    plan_random_bits,
    LINEAR(plan_reduce),
    LINEAR(plan_scan),
    LINEAR(plan_matmul),
    LINEAR(plan_gather),
    LINEAR(plan_scatter_add),
    LINEAR(plan_sort),
    LINEAR(plan_softmax),
    LINEAR(plan_softmax_grad),
    LINEAR(plan_cross_entropy),
    LINEAR(plan_cross_entropy_grad),
    LINEAR(plan_layer_norm),
    LINEAR(plan_layer_norm_grad),
    LINEAR(plan_batch_norm),
    LINEAR(plan_batch_norm_grad),
    LINEAR(adam),
    LINEAR(sgd),
};

}  // namespace needle::NEEDLE_ISA

extern "C" __attribute__((visibility("default"))) const needle::Kernels* needle_kernels() {
  return &needle::NEEDLE_ISA::kTable;
}
