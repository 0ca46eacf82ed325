// The loops of the binary and ternary rows of functions.def.
#include "avx512_binary.h"
#include "loop_templates.h"

namespace needle::NEEDLE_ISA {
namespace {

#define UNARY(...)
#define BINARY(name, dtypes, result, expression)    \
  struct name##_row {                               \
    static constexpr Function kFunction = k_##name; \
    template <class T>                              \
    static auto apply(T x, T y) {                   \
      return expression;                            \
    }                                               \
  };
#define TERNARY(name, dtypes, result, expression)   \
  struct name##_row {                               \
    static constexpr Function kFunction = k_##name; \
    template <class T>                              \
    using First = FirstOf<k_##name, T>;             \
    template <class X, class T>                     \
    static auto apply(X x, T y, T z) {              \
      return expression;                            \
    }                                               \
  };

// The condition of `where` is bool; every other first input has the dtype of the rest.
template <Function function, class T>
using FirstOf = std::conditional_t<function == k_where, bool, T>;

#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY

}  // namespace

#define EXACT_DIVISION(name)                                                     \
  template <class T>                                                             \
  struct Exact<name##_row, T> {                                                  \
    static constexpr bool kNeeded = math::is_float<T> || math::divides_longs<T>; \
    static bool is_rare(T x, T y) { return math::is_rare_quotient(x, y); }       \
    static T apply(T x, T y) { return math::exact_##name(x, y); }                \
  };
EXACT_DIVISION(floor_divide)
EXACT_DIVISION(remainder)

#if defined(__AVX512F__)
#define OF_VECTORS(name)                                                         \
  template <>                                                                    \
  struct OfVectors<name##_row, float> {                                          \
    static constexpr bool kExists = true;                                        \
    static Vector<float> apply(const Vector<float>& x, const Vector<float>& y) { \
      return avx512::name(x, y);                                                 \
    }                                                                            \
  };
OF_VECTORS(floor_divide)
OF_VECTORS(remainder)
OF_VECTORS(power)
OF_VECTORS(elu)
OF_VECTORS(silu_grad)
OF_VECTORS(gelu_grad)
OF_VECTORS(gelu_tanh_grad)
#endif

// ---- powers of small numbers: a function, or a few products -----------------------------------

#define SHORT_POWER(name, expression)               \
  struct name {                                     \
    static constexpr Function kFunction = k_square; \
    template <class T>                              \
    static T apply(T x) {                           \
      return expression;                            \
    }                                               \
  };
SHORT_POWER(Cube, x * x * x)
SHORT_POWER(Fourth, (x * x) * (x * x))
// 1 / x^2 would lose bits where the square is below the normal numbers.
SHORT_POWER(InverseSquare, (1 / x) * (1 / x))
SHORT_POWER(InverseCube, (1 / x) * (1 / x) * (1 / x))
SHORT_POWER(ThreeHalves, x* math::sqrt(x))
SHORT_POWER(InverseThreeHalves, (1 / x) * (1 / math::sqrt(x)))

// Null: there is none.
template <class T>
Contiguous short_power(T y) {
  constexpr DType dtype = sizeof(T) == 4 ? kFloat32 : kFloat64;
  if (y == 2) return loop_of(k_square, dtype);
  if (y == 3) return unary_loop<Cube, T, T>;
  if (y == 4) return unary_loop<Fourth, T, T>;
  if (y == -1) return loop_of(k_reciprocal, dtype);
  if (y == -2) return unary_loop<InverseSquare, T, T>;
  if (y == -3) return unary_loop<InverseCube, T, T>;
  if (y == T(1.5)) return unary_loop<ThreeHalves, T, T>;
  if (y == T(-1.5)) return unary_loop<InverseThreeHalves, T, T>;
  if (y == T(0.5)) return loop_of(k_sqrt, dtype);
  if (y == T(-0.5)) return loop_of(k_rsqrt, dtype);
  return nullptr;
}

// Square roots as powers: of -0 as of 0, and of -infinity as of infinity.
template <class T>
void power_by_root(T* out, const T* x, int64_t n, T y) {
  constexpr int64_t kPiece = 256;
  const T of_zero = y > 0 ? 0 : math::kInfinity<T>, of_infinity = y > 0 ? math::kInfinity<T> : 0;
  for (int64_t first = 0; first < n; first += kPiece) {
    T kept[kPiece];  // `out` may be x
    const int64_t count = std::min(kPiece, n - first);
    std::copy_n(x + first, count, kept);
    const void* piece[] = {kept};
    T* o = out + first;
    short_power(y)(o, piece, count);
    for (int64_t i = 0; i < count; ++i)
      o[i] = kept[i] == 0 ? of_zero : kept[i] == -math::kInfinity<T> ? of_infinity : o[i];
  }
}

// 0.1 of the time.
template <class T, Contiguous usual>
struct BesideNumber<power_row, T, usual> {
  static void loop(void* out, const void* const* inputs, int64_t n) {
    const T y = n > 0 ? *static_cast<const T*>(inputs[1]) : T(0);
    const Contiguous own = short_power(y);
    if (own && y != math::floor(y))
      power_by_root(static_cast<T*>(out), static_cast<const T*>(inputs[0]), n, y);
    else
      (own ? own : usual)(out, inputs, n);
  }
};

const LoopRow kBinaryLoops[kFunctions] = {
#define UNARY(...) {},
#define BINARY(name, dtypes, result, expression) LOOP_ROW(name##_row, 2, dtypes, result),
#define TERNARY(name, dtypes, result, expression) LOOP_ROW(name##_row, 3, dtypes, result),
#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY
};

const UniformRow kUniformLoops[kFunctions] = {
#define UNARY(name, dtypes, result, expression) {},
#define BINARY(name, dtypes, result, expression) UNIFORM_ROW(name##_row, 2, dtypes, result),
#define TERNARY(name, dtypes, result, expression) UNIFORM_ROW(name##_row, 3, dtypes, result),
#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY
};

}  // namespace needle::NEEDLE_ISA
