// The loops of the binary and ternary rows of functions.def.
#include "isa/avx512_binary.h"
#include "elementwise/loop_templates.h"

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

#define OF_BYTES(name, expression)                                    \
  template <>                                                         \
  struct OfBytes<name##_row> {                                        \
    static constexpr bool kExists = true;                             \
    static uint8_t apply(uint8_t x, uint8_t y) { return expression; } \
  };
constexpr uint8_t kOne = 1;
OF_BYTES(logical_and, std::min(std::min(x, y), kOne))
OF_BYTES(bitwise_and, std::min(std::min(x, y), kOne))
OF_BYTES(logical_or, std::min<uint8_t>(x | y, kOne))
OF_BYTES(bitwise_or, std::min<uint8_t>(x | y, kOne))
OF_BYTES(logical_xor, std::min(x, kOne) ^ std::min(y, kOne))
OF_BYTES(bitwise_xor, std::min(x, kOne) ^ std::min(y, kOne))
OF_BYTES(not_equal, std::min(x, kOne) ^ std::min(y, kOne))

#if defined(__AVX2__) && !defined(__AVX512F__)
// Of a vector, with what tells which lanes are rare (math::is_rare_quotient): a test of its own
// would take as long as all but the division.
struct DivisionOfVectors {
  Vector<float> quotient, rest;
  bool rare;

  DivisionOfVectors(const Vector<float>& x, const Vector<float>& y) {
    const Vector<float> exact = x / y;
    quotient = _mm256_floor_ps(exact);
    rest = _mm256_fnmadd_ps(quotient, y, x);
    const Vector<float> size = (Vector<float>)((Vector<int32_t>)exact & 0x7fffffff);
    const Vector<int32_t> usual = (size < math::kLargestQuotient<float>)&(rest == rest);
    rare = _mm256_movemask_ps((__m256)usual) != 0xff;
    const Vector<int32_t> signs = (Vector<int32_t>)rest ^ (Vector<int32_t>)y;
    const Vector<int32_t> above = (rest != 0) & (signs < 0);  // rounded up to a whole number
    quotient -= (Vector<float>)(above & (Vector<int32_t>)splat(1.f));
    rest += (Vector<float>)(above & (Vector<int32_t>)y);
  }
};

template <float (*exact)(float, float)>
[[gnu::noinline]] Vector<float> divide_rare(Vector<float> x, const Vector<float>& y) {
  for (int64_t i = 0; i < kLanes<float>; ++i) x[i] = exact(x[i], y[i]);
  return x;
}

template <>
struct OfVectors<floor_divide_row, float> {
  static constexpr bool kExists = true;
  static Vector<float> apply(const Vector<float>& x, const Vector<float>& y) {
    const DivisionOfVectors d(x, y);
    if (__builtin_expect(d.rare, 0)) return divide_rare<math::exact_floor_divide<float>>(x, y);
    return d.quotient;
  }
};
template <>
struct OfVectors<remainder_row, float> {
  static constexpr bool kExists = true;
  static Vector<float> apply(const Vector<float>& x, const Vector<float>& y) {
    const DivisionOfVectors d(x, y);
    if (__builtin_expect(d.rare, 0)) return divide_rare<math::exact_remainder<float>>(x, y);
    const Vector<int32_t> sign = (Vector<int32_t>)y & std::numeric_limits<int32_t>::min();
    return d.rest == 0 ? (Vector<float>)sign : d.rest;
  }
};

// The instructions shift by any count, as the functions do.
template <>
struct OfVectors<bitwise_left_shift_row, int32_t> {
  static constexpr bool kExists = true;
  static Vector<int32_t> apply(const Vector<int32_t>& x, const Vector<int32_t>& y) {
    return (Vector<int32_t>)_mm256_sllv_epi32((__m256i)x, (__m256i)y);
  }
};
template <>
struct OfVectors<bitwise_right_shift_row, int32_t> {
  static constexpr bool kExists = true;
  static Vector<int32_t> apply(const Vector<int32_t>& x, const Vector<int32_t>& y) {
    return (Vector<int32_t>)_mm256_srav_epi32((__m256i)x, (__m256i)y);
  }
};
#endif

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

// As a power, a root of -0 equals that of 0, and a root of -infinity that of infinity.
template <class T, class V>
V with_ends(const V& x, const V& root, T of_zero, T of_infinity) {
  const V ended = x == -math::kInfinity<T> ? V{} + of_infinity : root;
  return x == 0 ? V{} + of_zero : ended;
}
SHORT_POWER(Root, with_ends<T>(x, math::sqrt(x), 0, math::kInfinity<T>))
SHORT_POWER(InverseRoot, with_ends<T>(x, 1 / math::sqrt(x), math::kInfinity<T>, 0))
SHORT_POWER(ThreeHalves, with_ends<T>(x, x* math::sqrt(x), 0, math::kInfinity<T>))
SHORT_POWER(InverseThreeHalves,
            with_ends<T>(x, (1 / x) * (1 / math::sqrt(x)), math::kInfinity<T>, 0))

#if defined(__AVX512F__)
template <>
struct OfVectors<Root, float> {
  static constexpr bool kExists = true;
  static Vector<float> apply(const Vector<float>& x) { return ended(x, avx512::sqrt(x)); }
  static Vector<float> second(const Vector<float>& x) {
    return ended(x, avx512::sqrt_by_divider(x));
  }
  static Vector<float> ended(const Vector<float>& x, const Vector<float>& root) {
    return with_ends<float>(x, root, 0, math::kInfinity<float>);
  }
};
template <>
struct OfVectors<InverseRoot, float> {
  static constexpr bool kExists = true;
  static Vector<float> apply(const Vector<float>& x) {
    return with_ends<float>(x, avx512::rsqrt(x), math::kInfinity<float>, 0);
  }
  static Vector<float> second(const Vector<float>& x) { return apply(x); }
};
#endif

// Null without such a loop.
template <class T>
Contiguous short_power(T y) {
  constexpr DType dtype = sizeof(T) == 4 ? kFloat32 : kFloat64;
  if (y == 2) return loop_of(k_square, dtype);
  if (y == 3) return unary_form<Cube, T, T>();
  if (y == 4) return unary_form<Fourth, T, T>();
  if (y == -1) return loop_of(k_reciprocal, dtype);
  if (y == -2) return unary_form<InverseSquare, T, T>();
  if (y == -3) return unary_form<InverseCube, T, T>();
  if (y == T(0.5)) return unary_form<Root, T, T>();
  if (y == T(-0.5)) return unary_form<InverseRoot, T, T>();
  if (y == T(1.5)) return unary_form<ThreeHalves, T, T>();
  if (y == T(-1.5)) return unary_form<InverseThreeHalves, T, T>();
  return nullptr;
}

// A power with one of these exponents for all elements needs no logarithm.
template <class T, Contiguous usual>
struct BesideNumber<power_row, T, usual> {
  static void loop(void* out, const void* const* inputs, int64_t n) {
    const Contiguous own = n > 0 ? short_power(*static_cast<const T*>(inputs[1])) : nullptr;
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
