// Convolution by oneDNN: a plug-in of one function, opened only where the library is installed
// (python/needle/backend/onednn.py). Nothing else of Needle knows oneDNN.
#include <omp.h>

#include <cstdint>
#include <cstring>
#include <dnnl.hpp>
#include <unordered_map>

namespace {

using dnnl::memory;
using Dims = memory::dims;
using Arguments = std::unordered_map<int, memory>;

// As _Geometry in onednn.py: images [n, in..., c], weights [kernel..., c / groups, k], results
// [n, out..., k]; `low` elements before the image are zeros.
struct Geometry {
  int64_t axes, n, c, k, groups;
  int64_t in[3], out[3], kernel[3], stride[3], dilation[3], low[3];
};

enum Direction : int32_t { kForward, kInput, kWeight };
enum Status : int32_t { kDone, kNotTaken, kFailed };

constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

// The library counts axes as [n, c, *spatial]; here the channels are last in memory.
memory::desc image_of(const Geometry& g, int64_t channels, const int64_t* spatial) {
  Dims shape{g.n, channels}, strides(g.axes + 2);
  shape.insert(shape.end(), spatial, spatial + g.axes);
  strides[1] = 1;
  int64_t step = channels;
  for (int64_t axis = g.axes + 1; axis > 1; step *= shape[axis--]) strides[axis] = step;
  strides[0] = step;
  return {shape, memory::data_type::f32, strides};
}

Dims shape_of_weights(const Geometry& g) {
  Dims shape{g.k / g.groups, g.c / g.groups};
  shape.insert(shape.end(), g.kernel, g.kernel + g.axes);
  if (g.groups > 1) shape.insert(shape.begin(), g.groups);
  return shape;
}

memory::desc weights_of(const Geometry& g) {
  Dims strides{1, g.k};
  int64_t step = g.k * (g.c / g.groups);
  for (int64_t axis = g.axes - 1; axis >= 0; step *= g.kernel[axis--])
    strides.insert(strides.begin() + 2, step);
  if (g.groups > 1) strides.insert(strides.begin(), g.k / g.groups);
  return {shape_of_weights(g), memory::data_type::f32, strides};
}

struct Steps {
  Dims stride, dilation, low, high;

  explicit Steps(const Geometry& g)
      : stride(g.stride, g.stride + g.axes), low(g.low, g.low + g.axes) {
    for (int64_t i = 0; i < g.axes; ++i) {
      const int64_t span = g.dilation[i] * (g.kernel[i] - 1) + 1;
      dilation.push_back(g.dilation[i] - 1);
      high.push_back((g.out[i] - 1) * g.stride[i] + span - g.in[i] - g.low[i]);
    }
  }
};

dnnl::primitive_attr activation(float slope) {
  dnnl::primitive_attr attributes;
  if (slope == 1) return attributes;
  dnnl::post_ops after;
  after.append_eltwise(dnnl::algorithm::eltwise_relu, slope, 0);
  attributes.set_post_ops(after);
  return attributes;
}

class Convolution {
 public:
  Convolution(const Geometry& g, float* x, float* w, float* y)
      : g_(g),
        steps_(g),
        x_(image_of(g, g.c, g.in), engine(), x),
        w_(weights_of(g), engine(), w),
        y_(image_of(g, g.k, g.out), engine(), y),
        any_(shape_of_weights(g), memory::data_type::f32, memory::format_tag::any) {}

  bool forward(float* bias, float slope) {
    const auto how = described(bias, slope, dnnl::prop_kind::forward_inference);
    if (!how) return false;
    Arguments arguments{
        {DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, packed(how.weights_desc())}, {DNNL_ARG_DST, y_}};
    if (bias) arguments.emplace(DNNL_ARG_BIAS, memory(how.bias_desc(), engine(), bias));
    run(dnnl::convolution_forward(how), arguments);
    return true;
  }

  bool to_input() {
    const auto hint = described(nullptr, 1, dnnl::prop_kind::forward_training);
    if (!hint) return false;
    const dnnl::convolution_backward_data::primitive_desc how(
        engine(), kAlgorithm, x_.get_desc(), any_, y_.get_desc(), steps_.stride, steps_.dilation,
        steps_.low, steps_.high, hint, {}, true);
    if (!how) return false;
    run(dnnl::convolution_backward_data(how), {{DNNL_ARG_DIFF_SRC, x_},
                                               {DNNL_ARG_WEIGHTS, packed(how.weights_desc())},
                                               {DNNL_ARG_DIFF_DST, y_}});
    return true;
  }

  bool to_weights() {
    const auto hint = described(nullptr, 1, dnnl::prop_kind::forward_training);
    if (!hint) return false;
    const dnnl::convolution_backward_weights::primitive_desc how(
        engine(), kAlgorithm, x_.get_desc(), any_, y_.get_desc(), steps_.stride, steps_.dilation,
        steps_.low, steps_.high, hint, {}, true);
    if (!how) return false;
    const bool same = how.diff_weights_desc() == w_.get_desc();
    memory found = same ? w_ : memory(how.diff_weights_desc(), engine());
    run(dnnl::convolution_backward_weights(how),
        {{DNNL_ARG_SRC, x_}, {DNNL_ARG_DIFF_WEIGHTS, found}, {DNNL_ARG_DIFF_DST, y_}});
    if (!same) run(dnnl::reorder(found, w_), {{DNNL_ARG_FROM, found}, {DNNL_ARG_TO, w_}});
    return true;
  }

 private:
  static const dnnl::engine& engine() {
    static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
    return cpu;
  }

  static void run(const dnnl::primitive& what, const Arguments& arguments) {
    dnnl::stream stream(engine());
    what.execute(stream, arguments);
    stream.wait();
  }

  // Empty if the library does not support the convolution.
  dnnl::convolution_forward::primitive_desc described(const float* bias, float slope,
                                                      dnnl::prop_kind kind) const {
    const memory::desc none, row({g_.k}, memory::data_type::f32, memory::format_tag::a);
    return {engine(),      kind,          kAlgorithm,
            x_.get_desc(), any_,          bias ? row : none,
            y_.get_desc(), steps_.stride, steps_.dilation,
            steps_.low,    steps_.high,   activation(slope),
            true};
  }

  // The weights in the order that the library wants.
  memory packed(const memory::desc& wanted) {
    if (wanted == w_.get_desc()) return w_;
    memory out(wanted, engine());
    run(dnnl::reorder(w_, out), {{DNNL_ARG_FROM, w_}, {DNNL_ARG_TO, out}});
    return out;
  }

  const Geometry& g_;
  Steps steps_;
  memory x_, w_, y_;
  memory::desc any_;
};

bool convolve(int32_t direction, const Geometry& g, float* x, float* w, float* y, float* bias,
              float slope) {
  Convolution convolution(g, x, w, y);
  if (direction == kForward) return convolution.forward(bias, slope);
  return direction == kInput ? convolution.to_input() : convolution.to_weights();
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Computes y (kForward), x (kInput) or w (kWeight) from the other two. Returns a
// Status; kFailed with a message of at most `room` bytes.
EXPORT int32_t needle_onednn_convolution(int32_t direction, const Geometry* g, float* x, float* w,
                                         float* y, float* bias, float slope, int32_t threads,
                                         char* message, int64_t room) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  int32_t status = kFailed;
  try {
    status = convolve(direction, *g, x, w, y, bias, slope) ? kDone : kNotTaken;
  } catch (const std::exception& error) {
    std::strncpy(message, error.what(), room - 1);
  }
  omp_set_num_threads(before);
  return status;
}

EXPORT void needle_onednn_version(int32_t* version) {
  const dnnl_version_t* found = dnnl_version();
  version[0] = found->major;
  version[1] = found->minor;
  version[2] = found->patch;
}
