// Optimizer steps over many tensors in one launch.
#include "math.cuh"
#include "tensors.cuh"

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
__global__ void __launch_bounds__(256) adam(Tensors<48, 5> t, AdamRule rule) {
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
  i64 nesterov;
};

// p: out, parameter, gradient, velocity (or null).
template <class T>
__global__ void __launch_bounds__(256) sgd(Tensors<48, 4> t, SgdRule rule) {
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
      const C u = C(rule.momentum) * velocity[i] + C(rule.fresh) * g;
      velocity[i] = u;
      g = rule.nesterov ? g + C(rule.momentum) * u : u;
    }
    out[i] = cast<T>(x - C(rule.lr) * g);
  }
}
