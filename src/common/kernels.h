// The contract between the core (baseline code) and the kernels of one instruction set.
//
// Every kernel is planned, then run. Planning sees shapes, strides and dtypes, never an address;
// it chooses the algorithm and the size of the workspace. Running only sees addresses,
// allocates nothing, and may happen any number of times, from any thread. A Plan is plain bytes:
// it may live on the stack (eager mode) or in a list (a compiled program).
//
// Only C function pointers and plain types cross this line, so that no inline function compiled
// for one instruction set can be merged with its twin of another. For the same reason the kernels
// of each set are a shared object of their own that exports one symbol, the table, and is opened
// after asking the processor: in a single program the linker merges inline functions of several
// sets, and a processor would meet instructions that it lacks.
#pragma once
#include <cstddef>
#include <cstdint>

namespace needle {

constexpr int kMaxDims = 16;
constexpr int kMaxFused = 48, kMaxNumbers = 12;  // instructions and numbers of a fused program
constexpr size_t kPlanBytes = 1536;
constexpr int64_t kTrueBlock = 4096;  // elements

enum DType : int32_t {
  kFloat32,
  kFloat64,
  kBFloat16,
  kFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kBool,
  kDTypes,
};
constexpr int64_t kItemSize[kDTypes] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 1};

// The elementwise functions, in the order of functions.def.
enum Function : int32_t {
#define UNARY(name, ...) k_##name,
#define BINARY(name, ...) k_##name,
#define TERNARY(name, ...) k_##name,
#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY
  kFunctions,
};

enum Reduction : int32_t {
  kSum,
  kProd,
  kMax,
  kMin,
  kMean,
  kArgMax,
  kArgMin,
  kAny,
  kAll,
  kVariance,   // sum of squared distances from the mean, times a factor; floating
  kDeviation,  // the root of that; kNorm: of the sum of squares. Also where these leave the range
               // of
  kNorm,       // the dtype; float32 and float64
  kReductions
};
enum Scan : int32_t { kCumSum, kCumProd, kScans };

enum Cell : int32_t { kTanhCell, kReluCell, kGruCell, kLstmCell, kCells };
enum SoftmaxKind : int32_t { kSoftmax, kLogSoftmax, kLogSumExp };
enum NormKind : int32_t { kLayerNorm, kRmsNorm };
enum PadMode : int32_t { kPadZeros, kPadReflect, kPadSymmetric, kPadEdge, kPadWrap, kPadModes };

// A view without its address. Strides are in elements and may be zero or negative. The pointers
// are read during planning only.
struct Operand {
  DType dtype;
  int32_t ndim;
  const int64_t* shape;
  const int64_t* strides;
};

// A fused elementwise program. Its registers are the inputs, then the numbers, then the results of
// the instructions, in order; each has a dtype, and its values are numbers of that dtype, as if
// every instruction were a kernel of its own.
struct Instruction {
  int32_t function;  // or kFunctions + dtype: a cast
  int16_t args[3];   // registers
};
struct Number {
  double value;
  DType dtype;
};
struct FusedProgram {
  const Instruction* code;
  int32_t length;
  const Number* numbers;
  int32_t n_numbers;
  const int16_t* results;  // the registers of the outputs, each once; null: the last ones
};

// What is left of a program's last output: its reduction over axes.
struct FusedReduction {
  int32_t reduction;  // kSum, kMean, kMax or kMin
  uint32_t axes;
  DType dtype;  // of what is reduced
};

// buffers: the outputs, then the inputs, each at its view's first element. workspace: at least
// plan->workspace bytes, 64-byte aligned (null if 0). Returns -1, or the position (in the index
// operand, C order) of the first index out of range; then out is unspecified.
struct Plan;
using Run = int64_t (*)(const Plan* plan, void* const* buffers, void* workspace);
struct Plan {
  Run run;
  int64_t workspace;
  alignas(16) unsigned char state[kPlanBytes];
};

// n elements of contiguous operands, one thread: the way of small eager ops.
using Contiguous = void (*)(void* out, const void* const* inputs, int64_t n);

struct Adam {
  double lr, beta1, beta2, eps, weight_decay;  // weight_decay: added to the gradient, or
  bool decoupled;                              // (AdamW) taken from the parameter
  double correction1, correction2;             // 1 - beta1^t, 1 - beta2^t
};
struct Sgd {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
};

// Windows that move over images [n, spatial..., c] with 1 to 3 spatial axes, giving results
// [n, out..., k]. `low`: elements before the image that the first windows see. Results whose
// windows go beyond the image are right, too.
struct Window {
  int32_t axes;
  int64_t kernel[3], stride[3], dilation[3], low[3];
};
enum ConvolutionDirection : int32_t {
  kConvolve,        // buffers: y, x, w, bias (null: none)
  kConvolveInput,   // the transpose for the image. buffers: x, y, w
  kConvolveWeight,  // the transpose for the weights. buffers: w, x, y
};
enum ConvolutionAlgorithm : int32_t { kBySpec, kDirect, kWinograd };

// A batch of images [n, height, width, channels], dense, of kUInt8 or kFloat32.
struct Images {
  DType dtype;
  int64_t n, height, width, channels;
};

// Changes of `count` images in one pass: rows of (step, value), float64 [steps, 2], in which crops
// and flips come before cutouts. The numbers of an image are drawn from (seed, epoch, its index).
enum AugmentStep : int32_t { kCropZeros, kCropReflect, kFlip, kCutout };  // padding, p, size
struct AugmentTable {
  uint64_t seed, epoch;
  int64_t count, steps;
  bool normalise;  // at last, as plan_normalise_images
};

// Functions that are applied to a product one after the other, while its rows are in a cache.
constexpr int kMostEpilogue = 4;
struct EpilogueStep {
  int32_t function;  // unary or binary
  bool value_first;  // of a binary one: is the value so far the first operand?
  Operand operand;   // the other one, broadcast to the product: a row, or dense as that
};
struct Epilogue {
  int32_t length, kept;  // kept: the value before this step is a result, too; negative: none
  EpilogueStep steps[kMostEpilogue];
};

// Planning functions return null, or a static text that says why the kernel is not available;
// the caller then raises, or falls back to an expansion. `axes` is a bit mask. Unless a comment
// says otherwise inputs may have any strides, out is dense in C order and does not overlap them.
struct Kernels {
  const char* isa;
  int32_t vector_bits;
  void (*set_threads)(int32_t n);
  // Whether kernels that the calling thread plans from now on run on it alone.
  void (*set_alone)(int32_t alone);
  // Whether a row of a floating product has the same bits however many rows there are beside it.
  void (*set_products)(int32_t by_rows);
  // Results from `bytes` on are stored past the caches, and the second caches count as half as
  // large; 0: from sizes that gain by it, and as they are.
  void (*set_streaming_bytes)(int64_t bytes);
  // Makes the choices that depend on the processor for this generation (see stream.cc: 1, 4, 5) or
  // for other processors (0); negative: for the processor itself.
  void (*count_as_zen)(int32_t generation);

  Contiguous (*contiguous)(int32_t function, DType input, DType out);  // null: not supported
  // inputs are already broadcast to out's shape (stride 0) and share one dtype, except where's
  // bool condition; out has that dtype or bool, as functions.def says. out may have any strides
  // and may be one of the inputs (same view).
  const char* (*plan_elementwise)(Plan*, int32_t function, const Operand& out,
                                  const Operand* inputs, int32_t n);
  // Outputs of one shape, and inputs broadcast to it. An output may be the same view as an input.
  const char* (*plan_fused)(Plan*, const FusedProgram& program, const Operand* outs, int32_t n_outs,
                            const Operand* inputs, int32_t n_inputs);
  const char* (*plan_copy)(Plan*, const Operand& out, const Operand& x);  // casts; any strides out
  const char* (*plan_fill)(Plan*, const Operand& out, double value);      // any strides out
  // Philox blocks from counter + offset on, or for float32 multiples of 2**-24 in [0, 1), by the
  // low 24 bits of each word. buffers: out, {key, counter} (two uint64).
  const char* (*plan_random_bits)(Plan*, const Operand& out, uint64_t offset);

  // out: x's shape with the reduced axes 1; arg reductions: int64 out, one axis or all of them
  // (position in C order). kMean, and sums of float16/bfloat16, accumulate in float32 or wider.
  // factor: of kVariance and kDeviation.
  const char* (*plan_reduce)(Plan*, int32_t reduction, const Operand& out, const Operand& x,
                             uint32_t axes, double factor);
  const char* (*plan_scan)(Plan*, int32_t scan, const Operand& out, const Operand& x, int32_t axis);
  // The largest or smallest elements up to each one, and their positions: an int64 array laid out
  // as the values. Of equal ones the last; NaN is better than any. buffers: values, positions, x.
  const char* (*plan_extremes)(Plan*, const Operand& values, const Operand& x, int32_t axis,
                               bool largest);
  // out [..., m, n], a [..., m, k], b [..., k, n]; batch axes equal or stride 0.
  const char* (*plan_matmul)(Plan*, const Operand& out, const Operand& a, const Operand& b);
  // The same of two matrices of float32 or float64, added to what out holds.
  const char* (*plan_matmul_add)(Plan*, const Operand& out, const Operand& a, const Operand& b);

  // out[i..., j, k...] = x[i..., index[i..., j, k...], k...]: index has out's shape (stride 0 where
  // it does not vary: rows are then copied whole), x too except along axis. Negative indices wrap.
  const char* (*plan_gather)(Plan*, const Operand& out, const Operand& x, const Operand& index,
                             int32_t axis);
  // out = zeros, and out[i..., index[i..., j, k...], k...] += updates[i..., j, k...]; the order of
  // additions does not depend on the number of threads. buffers: out, index, updates.
  const char* (*plan_scatter_add)(Plan*, const Operand& out, const Operand& index,
                                  const Operand& updates, int32_t axis);
  // Stable; NaN last. values and indices may be shorter than x along axis: then they are the first
  // ones of the order. buffers: values, indices (int64), x.
  const char* (*plan_sort)(Plan*, const Operand& values, const Operand& indices, const Operand& x,
                           int32_t axis, bool descending);

  // Over the last axis. kind 0: softmax, 1: log_softmax, 2: logsumexp, whose out has size 1 there.
  // out is dense but for the place of its last axis, which may lie before others.
  const char* (*plan_softmax)(Plan*, int32_t kind, const Operand& out, const Operand& x);
  // dx from out (the result), g; dx as out above. buffers: dx, out, g.
  const char* (*plan_softmax_grad)(Plan*, int32_t kind, const Operand& dx, const Operand& out,
                                   const Operand& g);
  // loss [n], shift [n], rest [n] (whose sum is the log of the sum of exponentials) from logits
  // [n, classes], labels [n] integer; rows whose label is `ignore` have loss 0; smoothing as in
  // PyTorch, in [0, 1]. buffers: loss, shift, rest, logits, labels.
  const char* (*plan_cross_entropy)(Plan*, const Operand& logits, const Operand& labels,
                                    int64_t ignore, double smoothing);
  // dlogits[i, :] = g[i] * (softmax - target); dlogits may be logits. buffers: dlogits, g, logits,
  // labels, shift, rest.
  const char* (*plan_cross_entropy_grad)(Plan*, const Operand& logits, const Operand& labels,
                                         int64_t ignore, double smoothing);
  // Last axis d. kind 0: layer norm (mean, rstd), 1: RMS norm (mean unused). x, out dense
  // [rows, d]; weight, bias [d]; mean, rstd [rows] of float32 (float64 for float64 x).
  // buffers: out, mean, rstd, x, weight, bias.
  const char* (*plan_layer_norm)(Plan*, int32_t kind, const Operand& x, double eps);
  // buffers: dx, dweight, dbias, g, x, weight, mean, rstd.
  const char* (*plan_layer_norm_grad)(Plan*, int32_t kind, const Operand& x);
  // Training-mode batch norm over rows of dense [rows, c]. buffers: out, mean, var (biased), x,
  // weight, bias; and dx, dweight, dbias, g, x, weight, mean, var.
  const char* (*plan_batch_norm)(Plan*, const Operand& x, double eps);
  const char* (*plan_batch_norm_grad)(Plan*, const Operand& x, double eps);

  // float32, dense; weights [kernel..., c / groups, k]. The algorithm follows from the geometry
  // alone, or is the one asked for. kConvolve: results below zero are multiplied by slope. By spec
  // a kernel of one tap with slope 1 takes no bias: ask for kDirect.
  const char* (*plan_convolution)(Plan*, int32_t direction, int32_t algorithm, const Window&,
                                  int64_t groups, double slope, const Operand& x, const Operand& w,
                                  const Operand& y);
  // Largest elements of windows and their places in them (uint8); the first of equal ones, NaN
  // before all others. float32, dense. buffers: out, index, x; and dx, g, index.
  const char* (*plan_max_pool)(Plan*, const Window&, const Operand& x, const Operand& out);
  const char* (*plan_max_pool_grad)(Plan*, const Window&, const Operand& dx, const Operand& g);
  // Batch norm in training mode, plus a residual, rectified: dense float32 [rows, c]. buffers: out,
  // mean, var (biased), x, weight, bias, residual (null: none); and dx, dweight, dbias, dresidual
  // (null: none), g, out, x, weight, mean, var.
  const char* (*plan_batch_norm_relu)(Plan*, const Operand& x, double eps);
  const char* (*plan_batch_norm_relu_grad)(Plan*, const Operand& x, double eps);
  // Averages of windows without dilation; `before` and `after` say, per axis, how much of the
  // padding counts as elements. float32, dense. buffers: out, x; and dx, g.
  const char* (*plan_avg_pool)(Plan*, const Window&, const int64_t* before, const int64_t* after,
                               const Operand& x, const Operand& out);
  const char* (*plan_avg_pool_grad)(Plan*, const Window&, const int64_t* before,
                                    const int64_t* after, const Operand& dx, const Operand& g);
  // Group norm of dense float32 images [n, positions, c]. buffers: out, mean [n, groups], var
  // (biased), x, weight [c], bias; and dx, dweight, dbias, g, x, weight, mean, var.
  const char* (*plan_group_norm)(Plan*, const Operand& x, int64_t groups, double eps);
  const char* (*plan_group_norm_grad)(Plan*, const Operand& x, int64_t groups, double eps);

  // Changes of batches of images; out has their dtype, bytes are rounded to the nearest.
  // out[y, x] = image[top + y, left + x], mirrored in x if places says so; outside are zeros, or
  // the image mirrored at its edges. buffers: out, images, places int32 [n, 3]: top, left,
  // mirrored.
  const char* (*plan_move_images)(Plan*, const Images&, bool reflect);
  // Zeros from (top, left) up to (bottom, right). buffers: out, images, holes int32 [n, 4].
  const char* (*plan_erase_images)(Plan*, const Images&);
  // out = image * scale + shift, float32. buffers: out, images, scale, shift (float32 [channels]).
  const char* (*plan_normalise_images)(Plan*, const Images&);
  // Bilinear, as ops.upsample. buffers: out, images.
  const char* (*plan_resize_images)(Plan*, const Images&, int64_t height, int64_t width);
  // Brightness, contrast (from the mean grey), saturation; values stay in [0, top]. buffers: out,
  // images, factors float32 [n, 3].
  const char* (*plan_jitter_images)(Plan*, const Images&, double top);
  // buffers: out, images, indices int64 [count], rows, scale, shift (null: no normalise).
  const char* (*plan_augment_images)(Plan*, const Images&, const AugmentTable&);

  // A recurrent layer over a sequence, one direction; float32 or float64, all dense. `gates`
  // [steps, batch, n hidden] is what is kept of each step: tanh and relu cells 1 (the state), LSTM
  // 4 (input, forget, change, output), GRU 4 (reset, update, new, and the recurrent part of new).
  // inputs: x w_ih [steps, batch, m hidden], m = 3 for GRU, else n, where they may be `gates`. w_hh
  // [hidden, m hidden]; bias [n hidden]. A row stays as it is from lengths[row] (int64) on; its
  // out, gates and cells are 0 there. buffers: out [steps, batch, hidden], last state [batch,
  // hidden], last cell (null: not LSTM), inputs, gates, cells [steps, batch, hidden] (null), first
  // state, first cell (null), w_hh, bias, lengths (null: all steps).
  const char* (*plan_recurrent)(Plan*, int32_t cell, bool reverse, const Operand& gates,
                                int64_t hidden);
  // dgates is laid out as the gates, GRU's third and fourth part being the gradients of the input's
  // and of the recurrent part. buffers: dgates, dh0, dc0 (null), g_out (null: zeros), g_h (null),
  // g_c (null), out, gates, cells (null), h0, c0 (null), w_hh, lengths (null).
  const char* (*plan_recurrent_grad)(Plan*, int32_t cell, bool reverse, const Operand& gates,
                                     int64_t hidden);

  // softmax(q k' scale + mask) v by heads; float32 or float64. q [b, h, t, d], k [b, g, s, d],
  // v [b, g, s, e], out [b, h, t, e], with any strides but 1 for the last axis; h is a multiple of
  // g. mask [b, h, t, s], stride 0 where it does not vary: bools that say which keys are seen, or
  // numbers of q's dtype to add; ndim 0: none. causal: the last query sees all keys, the one before
  // it one key less. shift and rest [b, h, t] dense: the largest score, and the logarithm of the
  // sum of exponentials below it; both and out are 0 for a query that sees no key. Keys
  // from lengths[b] (int64) on do not exist. buffers: out, shift, rest, q, k, v, mask (null: none),
  // lengths (null: none).
  const char* (*plan_attention)(Plan*, double scale, bool causal, const Operand& out,
                                const Operand& q, const Operand& k, const Operand& v,
                                const Operand& mask);
  // buffers: dq, dk, dv, g, q, k, v, out, shift, rest, mask (null), lengths (null).
  const char* (*plan_attention_grad)(Plan*, double scale, bool causal, const Operand& dq,
                                     const Operand& dk, const Operand& dv, const Operand& g,
                                     const Operand& q, const Operand& k, const Operand& v,
                                     const Operand& out, const Operand& mask);

  // Multi-tensor updates, in place where out == in; dense float32 or float64 tensors of sizes[i]
  // elements. pointers: per tensor p_out, p, grad, m, v (Adam; m and v are updated in place) or
  // p_out, p, grad, velocity (SGD; null without momentum).
  void (*adam)(DType dtype, const Adam& rule, int64_t tensors, const int64_t* sizes,
               void* const* pointers);
  void (*sgd)(DType dtype, const Sgd& rule, int64_t tensors, const int64_t* sizes,
              void* const* pointers);

  // A banded matrix times an axis: out[i, j, k] = sum of weight[j, t] * x[i, first[j] + t, k] over
  // t < span. Then another times the next axis, or none: its span is 0. Dense float32 or float64,
  // x [rows, n, width, inner]. buffers: out, x, and of each matrix first (int64 [m]) and weight
  // ([m, span]).
  const char* (*plan_banded)(Plan*, const Operand& x, const Operand& out, int64_t first_span,
                             int64_t second_span);

  // out[i..., index[i..., j, k...], k...] = values[i..., j, k...], of equal places the last one;
  // out may have any strides, and stays as it is if an index is out of range. buffers: out, index,
  // values.
  const char* (*plan_put)(Plan*, const Operand& out, const Operand& index, const Operand& values,
                          int32_t axis);
  // out = index, or for all but the first index out * size + index; negative ones wrap. out is
  // dense int64, index broadcast to it. buffers: out, index.
  const char* (*plan_linear_index)(Plan*, const Operand& out, const Operand& index, int64_t size,
                                   bool first);
  // Finds the first integer that is not in [low, high) and not `kept`. buffers: x.
  const char* (*plan_check_range)(Plan*, const Operand& x, int64_t low, int64_t high, int64_t kept);
  // Where dense bools are true. In blocks of kTrueBlock elements: how many there are, int64, and
  // then, from the sum of these before each block, their positions, an int64 row for each axis.
  // buffers: counts, x; and out, starts (int64, for each block and the end), x.
  const char* (*plan_count_true)(Plan*, const Operand& x);
  const char* (*plan_find_true)(Plan*, const Operand& x);
  // x where column - row <= k (upper: >= k) in the last two axes, else zero. buffers: out, x.
  const char* (*plan_triangle)(Plan*, const Operand& out, const Operand& x, int64_t k, bool upper);
  // x with what `mode` says around it; before: how much per axis. Each axis of x has as much as is
  // mirrored or repeated. buffers: out, x.
  const char* (*plan_pad)(Plan*, int32_t mode, const Operand& out, const Operand& x,
                          const int64_t* before);
  // A product and what follows, with the bits of separate kernels. buffers: out (the value that is
  // kept, if one is), a, b, the last value if one is kept (laid out as out), the other operands.
  const char* (*plan_matmul_epilogue)(Plan*, const Operand& out, const Operand& a, const Operand& b,
                                      const Epilogue&);
  // As plan_fused and then plan_reduce, with their bits; but the last output, which is read by the
  // reduction alone, is no array: in its place is the result. inputs have the program's shape.
  const char* (*plan_fused_reduce)(Plan*, const FusedReduction&, const FusedProgram& program,
                                   const Operand* outs, int32_t n_outs, const Operand* inputs,
                                   int32_t n_inputs);
};

// The functions in the table, in its order.
// clang-format off
#define NEEDLE_KERNELS(KERNEL) \
  KERNEL(set_threads) KERNEL(set_alone) KERNEL(set_products) KERNEL(set_streaming_bytes) \
  KERNEL(count_as_zen) KERNEL(contiguous) KERNEL(plan_elementwise) KERNEL(plan_fused) \
  KERNEL(plan_copy) KERNEL(plan_fill) KERNEL(plan_random_bits) KERNEL(plan_reduce) \
  KERNEL(plan_scan) KERNEL(plan_extremes) KERNEL(plan_matmul) KERNEL(plan_matmul_add) \
  KERNEL(plan_gather) KERNEL(plan_scatter_add) KERNEL(plan_sort) KERNEL(plan_softmax) \
  KERNEL(plan_softmax_grad) KERNEL(plan_cross_entropy) KERNEL(plan_cross_entropy_grad) \
  KERNEL(plan_layer_norm) KERNEL(plan_layer_norm_grad) KERNEL(plan_batch_norm) \
  KERNEL(plan_batch_norm_grad) KERNEL(plan_convolution) KERNEL(plan_max_pool) \
  KERNEL(plan_max_pool_grad) KERNEL(plan_batch_norm_relu) KERNEL(plan_batch_norm_relu_grad) \
  KERNEL(plan_avg_pool) KERNEL(plan_avg_pool_grad) \
  KERNEL(plan_group_norm) KERNEL(plan_group_norm_grad) KERNEL(plan_move_images) \
  KERNEL(plan_erase_images) KERNEL(plan_normalise_images) KERNEL(plan_resize_images) \
  KERNEL(plan_jitter_images) KERNEL(plan_augment_images) KERNEL(plan_recurrent) \
  KERNEL(plan_recurrent_grad) KERNEL(plan_attention) KERNEL(plan_attention_grad) KERNEL(adam) \
  KERNEL(sgd) KERNEL(plan_banded) KERNEL(plan_put) KERNEL(plan_linear_index) \
  KERNEL(plan_check_range) KERNEL(plan_count_true) KERNEL(plan_find_true) KERNEL(plan_triangle) \
  KERNEL(plan_pad) KERNEL(plan_matmul_epilogue) KERNEL(plan_fused_reduce)
// clang-format on

}  // namespace needle
