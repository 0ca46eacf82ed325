// Optimizer steps over many tensors at once: one parallel region, in which each thread takes an
// equal share of all elements, and one pass over the memory.
#include <cmath>
#include <initializer_list>

#include "base/axes.h"
#include "base/table.h"

namespace needle::NEEDLE_ISA {
namespace {

// body(tensor, begin, end) for all elements of all tensors.
template <class Body>
void for_pieces(int64_t tensors, const int64_t* sizes, const Body& body) {
  int64_t total = 0;
  for (int64_t i = 0; i < tensors; ++i) total += sizes[i];
  const int team = team_size(total, total);
  run_tasks(team, team, [&](int64_t task, int) {
    // Shares start at multiples of 16 elements, so that no two threads write one cache line often.
    int64_t begin = total / 16 * task / team * 16;
    int64_t end = task + 1 == team ? total : total / 16 * (task + 1) / team * 16;
    for (int64_t i = 0; i < tensors && end > 0; ++i) {
      if (begin < sizes[i]) body(i, begin > 0 ? begin : 0, end < sizes[i] ? end : sizes[i]);
      begin -= sizes[i];
      end -= sizes[i];
    }
  });
}

constexpr int64_t kAhead = 4096;  // bytes: the processor itself does not look over a page's end
constexpr int64_t kPiece = 64;    // elements between two requests for what comes later

// body(i) for begin <= i < end, while later elements of the arrays come from memory. The body reads
// everything before it writes: where arrays lie at equal places in their pages, a load takes an
// earlier store to another array for one to its own address and waits for it.
template <class T, class Body>
inline void for_elements(int64_t begin, int64_t end, std::initializer_list<const T*> arrays,
                         const Body& body) {
  constexpr int64_t kLine = 64 / sizeof(T);
  const int64_t fetched = fetches_updates() ? kPiece : 0;
  int64_t i = begin;
  for (; i + kPiece <= end; i += kPiece) {
    for (const T* array : arrays)
      for (int64_t j = 0; j < fetched; j += kLine)
        __builtin_prefetch(array + i + j + kAhead / sizeof(T));
#pragma omp simd
    for (int64_t j = i; j < i + kPiece; ++j) body(j);
  }
#pragma omp simd
  for (int64_t j = i; j < end; ++j) body(j);
}

// What weight decay adds to a gradient. Nothing of an infinite parameter either, without decay.
template <class T>
inline T pull(T decay, T p) {
  return decay != 0 ? decay * p : T(0);
}

template <class T>
void adam_piece(const Adam& rule, T* p_out, const T* p, const T* grad, T* m, T* v, int64_t begin,
                int64_t end) {
  const T decay = rule.decoupled ? 0 : T(rule.weight_decay);
  const T shrink = rule.decoupled ? T(1 - rule.lr * rule.weight_decay) : T(1);
  const T rate1 = T(1 - rule.beta1), rate2 = T(1 - rule.beta2), beta2 = T(rule.beta2);
  const T step = T(rule.lr / rule.correction1), eps = T(rule.eps);
  const T root = T(1 / std::sqrt(rule.correction2));
  for_elements<T>(begin, end, {p, grad, m, v}, [=](int64_t i) {
    const T before = p[i], g = grad[i] + pull(decay, before), mean = m[i], square = v[i];
    const T new_mean = mean + rate1 * (g - mean), new_square = beta2 * square + rate2 * g * g;
    p_out[i] = shrink * before - step * new_mean / (std::sqrt(new_square) * root + eps);
    m[i] = new_mean;
    v[i] = new_square;
  });
}

template <class T>
void sgd_piece(const Sgd& rule, T* p_out, const T* p, const T* grad, T* velocity, int64_t begin,
               int64_t end) {
  const T lr = T(rule.lr), decay = T(rule.weight_decay), momentum = T(rule.momentum);
  if (!velocity) {
    for_elements<T>(begin, end, {p, grad},
                    [=](int64_t i) { p_out[i] = p[i] - lr * (grad[i] + pull(decay, p[i])); });
    return;
  }
  const T fresh = T(1 - rule.dampening);
  const T from_grad = rule.nesterov ? T(1) : T(0), from_velocity = rule.nesterov ? momentum : T(1);
  for_elements<T>(begin, end, {p, grad, velocity}, [=](int64_t i) {
    const T before = p[i], g = grad[i] + pull(decay, before);
    const T moved = momentum * velocity[i] + fresh * g;
    p_out[i] = before - lr * (from_grad * g + from_velocity * moved);
    velocity[i] = moved;
  });
}

template <class T>
void adam_in(const Adam& rule, int64_t tensors, const int64_t* sizes, void* const* pointers) {
  for_pieces(tensors, sizes, [&](int64_t tensor, int64_t begin, int64_t end) {
    void* const* p = pointers + 5 * tensor;
    adam_piece(rule, as<T>(p[0]), as<T>(p[1]), as<T>(p[2]), as<T>(p[3]), as<T>(p[4]), begin, end);
  });
}

template <class T>
void sgd_in(const Sgd& rule, int64_t tensors, const int64_t* sizes, void* const* pointers) {
  for_pieces(tensors, sizes, [&](int64_t tensor, int64_t begin, int64_t end) {
    void* const* p = pointers + 4 * tensor;
    sgd_piece(rule, as<T>(p[0]), as<T>(p[1]), as<T>(p[2]), as<T>(p[3]), begin, end);
  });
}

}  // namespace

void adam(DType dtype, const Adam& rule, int64_t tensors, const int64_t* sizes,
          void* const* pointers) {
  if (dtype == kFloat64)
    adam_in<double>(rule, tensors, sizes, pointers);
  else
    adam_in<float>(rule, tensors, sizes, pointers);
}

void sgd(DType dtype, const Sgd& rule, int64_t tensors, const int64_t* sizes,
         void* const* pointers) {
  if (dtype == kFloat64)
    sgd_in<double>(rule, tensors, sizes, pointers);
  else
    sgd_in<float>(rule, tensors, sizes, pointers);
}

}  // namespace needle::NEEDLE_ISA
