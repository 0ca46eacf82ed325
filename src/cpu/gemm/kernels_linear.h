// Planning functions for products, reductions and the fused kernels of training, named as the
// fields of Kernels (kernels.h describes each).
#pragma once
#include "isa/isa.h"

namespace needle::NEEDLE_ISA {

void use_matrix_unit(bool on);
void set_products(int32_t by_rows);
const char* plan_matmul(Plan*, const Operand& out, const Operand& a, const Operand& b);
const char* plan_matmul_add(Plan*, const Operand& out, const Operand& a, const Operand& b);
const char* plan_matmul_epilogue(Plan*, const Operand& out, const Operand& a, const Operand& b,
                                 const Epilogue&);
const char* plan_reduce(Plan*, int32_t reduction, const Operand& out, const Operand& x,
                        uint32_t axes, double factor);
const char* plan_scan(Plan*, int32_t scan, const Operand& out, const Operand& x, int32_t axis);
const char* plan_extremes(Plan*, const Operand& values, const Operand& x, int32_t axis,
                          bool largest);
const char* plan_product_grad(Plan*, int32_t kind, const Operand& x, const Operand& g,
                              int32_t axis);
const char* plan_gather(Plan*, const Operand& out, const Operand& x, const Operand& index,
                        int32_t axis);
const char* plan_scatter_add(Plan*, const Operand& out, const Operand& index,
                             const Operand& updates, int32_t axis);
const char* plan_put(Plan*, const Operand& out, const Operand& index, const Operand& values,
                     int32_t axis);
const char* plan_linear_index(Plan*, const Operand& out, const Operand& index, int64_t size,
                              bool first);
const char* plan_check_range(Plan*, const Operand& x, int64_t low, int64_t high, int64_t kept);
const char* plan_count_true(Plan*, const Operand& x);
const char* plan_find_true(Plan*, const Operand& x);
const char* plan_searchsorted(Plan*, const Operand& edges, const Operand& values, bool right);
const char* plan_triangle(Plan*, const Operand& out, const Operand& x, int64_t k, bool upper);
const char* plan_pad(Plan*, int32_t mode, const Operand& out, const Operand& x,
                     const int64_t* before);
const char* plan_sort(Plan*, const Operand& values, const Operand& indices, const Operand& x,
                      int32_t axis, bool descending);
const char* plan_softmax(Plan*, int32_t kind, const Operand& out, const Operand& x);
const char* plan_softmax_grad(Plan*, int32_t kind, const Operand& dx, const Operand& out,
                              const Operand& g);
const char* plan_cross_entropy(Plan*, const Operand& logits, const Operand& labels, int64_t ignore,
                               double smoothing);
const char* plan_cross_entropy_grad(Plan*, const Operand& logits, const Operand& labels,
                                    int64_t ignore, double smoothing);
const char* plan_layer_norm(Plan*, int32_t kind, const Operand& x, double eps);
const char* plan_layer_norm_grad(Plan*, int32_t kind, const Operand& x);
const char* plan_batch_norm(Plan*, const Operand& x, double eps);
const char* plan_batch_norm_grad(Plan*, const Operand& x, double eps);
const char* plan_convolution(Plan*, int32_t direction, int32_t algorithm, const Window&,
                             int64_t groups, double slope, const Operand& x, const Operand& w,
                             const Operand& y);
const char* plan_max_pool(Plan*, const Window&, const Operand& x, const Operand& out);
const char* plan_max_pool_grad(Plan*, const Window&, const Operand& dx, const Operand& g);
const char* plan_batch_norm_relu(Plan*, const Operand& x, double eps);
const char* plan_batch_norm_relu_grad(Plan*, const Operand& x, double eps);
const char* plan_max_pool_take(Plan*, const Window&, const Operand& x, const Operand& out);
const char* plan_avg_pool(Plan*, const Window&, const int64_t* before, const int64_t* after,
                          const Operand& x, const Operand& out);
const char* plan_avg_pool_grad(Plan*, const Window&, const int64_t* before, const int64_t* after,
                               const Operand& dx, const Operand& g);
const char* plan_banded(Plan*, const Operand& x, const Operand& out, int64_t first_span,
                        int64_t second_span);
const char* plan_group_norm(Plan*, const Operand& x, int64_t groups, double eps);
const char* plan_group_norm_grad(Plan*, const Operand& x, int64_t groups, double eps);
const char* plan_move_images(Plan*, const Images&, bool reflect);
const char* plan_erase_images(Plan*, const Images&);
const char* plan_normalise_images(Plan*, const Images&);
const char* plan_resize_images(Plan*, const Images&, int64_t height, int64_t width);
const char* plan_jitter_images(Plan*, const Images&, double top);
const char* plan_augment_images(Plan*, const Images&, const AugmentTable&);
const char* plan_recurrent(Plan*, int32_t cell, bool reverse, const Operand& gates, int64_t hidden);
const char* plan_recurrent_grad(Plan*, int32_t cell, bool reverse, const Operand& gates,
                                int64_t hidden);
const char* plan_attention(Plan*, double scale, bool causal, const Operand& out, const Operand& q,
                           const Operand& k, const Operand& v, const Operand& mask);
const char* plan_attention_grad(Plan*, double scale, bool causal, const Operand& dq,
                                const Operand& dk, const Operand& dv, const Operand& g,
                                const Operand& q, const Operand& k, const Operand& v,
                                const Operand& out, const Operand& mask);
void adam(DType dtype, const Adam& rule, int64_t tensors, const int64_t* sizes,
          void* const* pointers);
void sgd(DType dtype, const Sgd& rule, int64_t tensors, const int64_t* sizes,
         void* const* pointers);

}  // namespace needle::NEEDLE_ISA
