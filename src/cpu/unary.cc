// The loops of the unary rows of functions.def.
#include "loop_templates.h"

namespace needle::NEEDLE_ISA {
namespace {

#define UNARY(name, dtypes, result, expression) \
  struct name##_row {                           \
    template <class T>                          \
    static auto apply(T x) {                    \
      return expression;                        \
    }                                           \
  };
#define BINARY(...)
#define TERNARY(...)
#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY

}  // namespace

const LoopRow kUnaryLoops[kFunctions] = {
#define UNARY(name, dtypes, result, expression) LOOP_ROW(name##_row, 1, dtypes, result),
#define BINARY(...) {},
#define TERNARY(...) {},
#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY
};

}  // namespace needle::NEEDLE_ISA
