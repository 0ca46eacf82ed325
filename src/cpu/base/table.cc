// The table of this instruction set, the only symbol that leaves the shared object.
#include "elementwise/elementwise.h"

#include <string_view>

#include "gemm/kernels_linear.h"

namespace needle::NEEDLE_ISA {

#if defined(__AVX512F__)
constexpr int32_t kVectorBits = 512;
#elif defined(__AVX__)
constexpr int32_t kVectorBits = 256;
#else
constexpr int32_t kVectorBits = 128;
#endif

static Kernels table = {
    nullptr,
    kVectorBits,
    set_threads,
    set_alone,
    set_products,
    set_streaming_bytes,
    count_as_zen,
    contiguous,
    plan_elementwise,
    plan_fused,
    plan_copy,
    plan_fill,
    plan_ramp,
    plan_random_bits,
    plan_draw,
    plan_reduce,
    plan_scan,
    plan_extremes,
    plan_product_grad,
    plan_matmul,
    plan_matmul_add,
    plan_gather,
    plan_scatter_add,
    plan_sort,
    plan_softmax,
    plan_softmax_grad,
    plan_cross_entropy,
    plan_cross_entropy_grad,
    plan_layer_norm,
    plan_layer_norm_grad,
    plan_batch_norm,
    plan_batch_norm_grad,
    plan_convolution,
    plan_max_pool,
    plan_max_pool_grad,
    plan_batch_norm_relu,
    plan_batch_norm_relu_grad,
    plan_max_pool_take,
    plan_avg_pool,
    plan_avg_pool_grad,
    plan_group_norm,
    plan_group_norm_grad,
    plan_move_images,
    plan_erase_images,
    plan_normalise_images,
    plan_resize_images,
    plan_jitter_images,
    plan_augment_images,
    plan_recurrent,
    plan_recurrent_grad,
    plan_attention,
    plan_attention_grad,
    adam,
    sgd,
    plan_banded,
    plan_put,
    plan_linear_index,
    plan_check_range,
    plan_count_true,
    plan_find_true,
    plan_searchsorted,
    plan_triangle,
    plan_pad,
    plan_matmul_epilogue,
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
