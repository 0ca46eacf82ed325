// Optimizer steps over many tensors in one launch. A block takes a piece of one tensor; the table
// of tensors is a parameter, so that nothing has to be copied to the device.
#include "math.cuh"

constexpr int kTensors = 48, kPointers = 6;
constexpr i64 kPiece = 1024;

struct Tensors {
  i64 count;
  i64 first_block[kTensors];
  i64 size[kTensors];
  void* p[kTensors][kPointers];
};

struct Piece {
  int tensor;
  i64 begin, end;
  __device__ explicit Piece(const Tensors& t) {
    int low = 0, high = static_cast<int>(t.count) - 1;
    while (low < high) {  // the last tensor that starts at or before this block
      const int middle = (low + high + 1) / 2;
      if (t.first_block[middle] <= static_cast<i64>(blockIdx.x)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    tensor = low;
    begin = (blockIdx.x - t.first_block[low]) * kPiece;
    end = begin + kPiece < t.size[low] ? begin + kPiece : t.size[low];
  }
};

// The term of weight decay in a gradient; 0 without decay, even for an infinite parameter.
template <class C>
__device__ inline C pull(C decay, C x) {
  return decay != 0 ? decay * x : C(0);
}

struct AdamRule {
  double beta1, beta2, eps, decay, shrink, step, root;
};

// p: out, parameter, gradient, m, v. decay: added to the gradient; shrink: of the parameter.
template <class T>
__global__ void __launch_bounds__(256) adam(Tensors t, AdamRule rule) {
  using C = Compute<T>;
  const Piece piece(t);
  void* const* p = t.p[piece.tensor];
  T* out = static_cast<T*>(p[0]);
  const T *param = static_cast<const T*>(p[1]), *grad = static_cast<const T*>(p[2]);
  C *m = static_cast<C*>(p[3]), *v = static_cast<C*>(p[4]);
  const C beta1 = C(rule.beta1), rate1 = C(1 - rule.beta1), beta2 = C(rule.beta2);
  const C rate2 = C(1 - rule.beta2), decay = C(rule.decay), shrink = C(rule.shrink);
  const C step = C(rule.step), root = C(rule.root), eps = C(rule.eps);
  for (i64 i = piece.begin + threadIdx.x; i < piece.end; i += blockDim.x) {
    const C x = widen(param[i]), g = widen(grad[i]) + pull(decay, x);
    m[i] = beta1 * m[i] + rate1 * g;
    v[i] = beta2 * v[i] + rate2 * g * g;
    out[i] = cast<T>(x * shrink - step * m[i] / (math::sqrt(v[i]) * root + eps));
  }
}

struct SgdRule {
  double lr, momentum, fresh, decay;
  i64 nesterov, first;
};

// p: out, parameter, gradient, velocity (or null).
template <class T>
__global__ void __launch_bounds__(256) sgd(Tensors t, SgdRule rule) {
  using C = Compute<T>;
  const Piece piece(t);
  void* const* p = t.p[piece.tensor];
  T* out = static_cast<T*>(p[0]);
  const T *param = static_cast<const T*>(p[1]), *grad = static_cast<const T*>(p[2]);
  C* velocity = static_cast<C*>(p[3]);
  for (i64 i = piece.begin + threadIdx.x; i < piece.end; i += blockDim.x) {
    const C x = widen(param[i]);
    C g = widen(grad[i]) + pull(C(rule.decay), x);
    if (velocity) {
      const C u = rule.first ? g : C(rule.momentum) * velocity[i] + C(rule.fresh) * g;
      velocity[i] = u;
      g = rule.nesterov ? g + C(rule.momentum) * u : u;
    }
    out[i] = cast<T>(x - C(rule.lr) * g);
  }
}

struct RmsRule {
  double lr, alpha, eps, decay, momentum;
};

// p: out, parameter, gradient, mean square, mean (or null), momentum (or null). (Four blocks: see
// elementwise.cu.)
template <class T>
__global__ void __launch_bounds__(256, 4) rmsprop(Tensors t, RmsRule rule) {
  using C = Compute<T>;
  const Piece piece(t);
  void* const* p = t.p[piece.tensor];
  T* out = static_cast<T*>(p[0]);
  const T *param = static_cast<const T*>(p[1]), *grad = static_cast<const T*>(p[2]);
  C *v = static_cast<C*>(p[3]), *mean = static_cast<C*>(p[4]), *u = static_cast<C*>(p[5]);
  const C alpha = C(rule.alpha), rate = C(1 - rule.alpha);
  for (i64 i = piece.begin + threadIdx.x; i < piece.end; i += blockDim.x) {
    const C x = widen(param[i]), g = widen(grad[i]) + pull(C(rule.decay), x);
    C size = v[i] = alpha * v[i] + rate * g * g;
    if (mean) {
      const C middle = mean[i] = alpha * mean[i] + rate * g;
      size -= middle * middle;
    }
    // not !(size > 0): NaN stays
    C step = g / (math::sqrt(size < C(0) ? C(0) : size) + C(rule.eps));
    if (u) step = u[i] = C(rule.momentum) * u[i] + step;
    out[i] = cast<T>(x - C(rule.lr) * step);
  }
}
