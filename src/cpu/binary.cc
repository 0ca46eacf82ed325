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
#endif

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
