// The loops of the unary rows of functions.def.
#include "isa/avx2_math.h"
#include "isa/avx512_math.h"
#include "elementwise/loop_templates.h"

namespace needle::NEEDLE_ISA {
namespace {

#define UNARY(name, dtypes, result, expression)     \
  struct name##_row {                               \
    static constexpr Function kFunction = k_##name; \
    template <class T>                              \
    static auto apply(T x) {                        \
      return expression;                            \
    }                                               \
  };
#define BINARY(...)
#define TERNARY(...)
#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY

}  // namespace

// Next to a multiple of pi/2 the C library's functions of float64 may be 8 units off, those of
// wider numbers are not.
template <class T>
using WideAngle = std::conditional_t<sizeof(T) == 8, long double, T>;

#define EXACT_ANGLE(name)                                                      \
  template <class T>                                                           \
  struct Exact<name##_row, T> {                                                \
    static constexpr bool kNeeded = true;                                      \
    static bool is_rare(T x) { return math::is_rare_angle(x); }                \
    static T apply(T x) { return static_cast<T>(std::name(WideAngle<T>(x))); } \
  };
EXACT_ANGLE(sin)
EXACT_ANGLE(cos)
EXACT_ANGLE(tan)

#define USUAL_LOG(name)                                                    \
  template <class T>                                                       \
  struct Usual<name##_row, T> {                                            \
    static constexpr bool kExists = math::is_float<T>;                     \
    static constexpr Function kFunction = k_##name;                        \
    static bool is_usual(T x) { return math::is_normal(x); }               \
    static T apply(T x) { return math::name##_of(math::split_normal(x)); } \
  };
USUAL_LOG(log)
USUAL_LOG(log2)
USUAL_LOG(log10)

#define USUAL_POWER(name, end)                                         \
  template <class T>                                                   \
  struct Usual<name##_row, T> {                                        \
    static constexpr bool kExists = math::is_float<T>;                 \
    static constexpr Function kFunction = k_##name;                    \
    static bool is_usual(T x) { return math::abs(x) <= math::end<T>; } \
    static T apply(T x) { return math::usual_##name(x); }              \
  };
USUAL_POWER(exp, kExpUsual)
USUAL_POWER(exp2, kExp2Usual)

#define OF_SIGN(name, expression)                               \
  template <>                                                   \
  struct OfSign<name##_row> {                                   \
    static constexpr bool kExists = true;                       \
    static uint16_t apply(uint16_t bits) { return expression; } \
  };
OF_SIGN(negative, bits ^ 0x8000)
OF_SIGN(abs, bits & 0x7fff)

#if defined(__AVX512F__)
#define OF_VECTORS_PAIRED(name, paired)                                               \
  template <>                                                                         \
  struct OfVectors<name##_row, float> {                                               \
    static constexpr bool kExists = true;                                             \
    static bool is_far(float x) { return avx512::is_far(x); }                         \
    static Vector<float> apply(const Vector<float>& x) { return avx512::name(x); }    \
    static Vector<float> second(const Vector<float>& x) { return avx512::paired(x); } \
  };
#define OF_VECTORS(name) OF_VECTORS_PAIRED(name, name)
OF_VECTORS_PAIRED(sqrt, sqrt_by_divider)
OF_VECTORS_PAIRED(reciprocal, reciprocal_by_divider)
OF_VECTORS(rsqrt)
OF_VECTORS(exp)
OF_VECTORS(exp2)
OF_VECTORS(expm1)
OF_VECTORS(log)
OF_VECTORS(log2)
OF_VECTORS(log10)
OF_VECTORS(log1p)
OF_VECTORS(atanh)
OF_VECTORS(sin)
OF_VECTORS(cos)
OF_VECTORS(tan)
OF_VECTORS(erf)
OF_VECTORS(gelu)
OF_VECTORS(gelu_tanh)
OF_VECTORS(silu)
#elif defined(__AVX2__)
#define OF_VECTORS(name)                                                          \
  template <>                                                                     \
  struct OfVectors<name##_row, float> {                                           \
    static constexpr bool kExists = true;                                         \
    static Vector<float> apply(const Vector<float>& x) { return avx2::name(x); }  \
    static Vector<float> second(const Vector<float>& x) { return avx2::name(x); } \
  };
OF_VECTORS(sign)
OF_VECTORS(rsqrt)
OF_VECTORS(erf)
#endif

const LoopRow kUnaryLoops[kFunctions] = {
#define UNARY(name, dtypes, result, expression) LOOP_ROW(name##_row, 1, dtypes, result),
#define BINARY(...) {},
#define TERNARY(...) {},
#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY
};

const Contiguous kPastLoops[kFunctions] = {
#define UNARY(name, dtypes, result, expression) past_form<name##_row, dtypes>(),
#define BINARY(...) nullptr,
#define TERNARY(...) nullptr,
#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY
};

}  // namespace needle::NEEDLE_ISA
