// The numbers of kinds, functions, modes and algorithms by their names: Python reads them here.
#include "gate/gate.h"

namespace needle {

const char* const function_names[] = {
#define UNARY(name, ...) #name,
#define BINARY(name, ...) #name,
#define TERNARY(name, ...) #name,
#include "functions.def"
#undef UNARY
#undef BINARY
#undef TERNARY
};
const char* const reduction_names[] = {"sum",    "prod", "max", "min",      "mean",      "argmax",
                                       "argmin", "any",  "all", "variance", "deviation", "norm"};

namespace {

struct Number {
  const char *kind, *name;
  int64_t number;
};

constexpr Number all[] = {
    {"op", "elementwise", kElementwise},
    {"op", "reshape", kReshape},
    {"op", "permute", kPermute},
    {"op", "broadcast", kBroadcast},
    {"op", "slice", kSlice},
    {"op", "reduce", kReduce},
    {"op", "matmul", kMatMul},
    {"op", "sum to", kSumTo},
    {"op", "item", kItem},
    {"op", "cast", kCast},
    {"op", "compute", kCompute},
    {"promotion", "nothing", kPromoteNothing},
    {"promotion", "all", kPromoteAll},
    {"promotion", "floating", kPromoteFloating},
    {"promotion", "first", kPromoteFirst},
    {"scan", "cumsum", kCumSum},
    {"scan", "cumprod", kCumProd},
    {"pad", "constant", kPadZeros},
    {"pad", "reflect", kPadReflect},
    {"pad", "symmetric", kPadSymmetric},
    {"pad", "edge", kPadEdge},
    {"pad", "wrap", kPadWrap},
    {"convolution", "Convolution", kConvolve},
    {"convolution", "ConvolutionBias", kConvolve},
    {"convolution", "ConvolutionActivation", kConvolve},
    {"convolution", "ConvolutionInput", kConvolveInput},
    {"convolution", "ConvolutionWeight", kConvolveWeight},
    {"algorithm", "", kBySpec},
    {"algorithm", "direct", kDirect},
    {"algorithm", "winograd", kWinograd},
    {"augment", "zeros", kCropZeros},
    {"augment", "reflect", kCropReflect},
    {"augment", "flip", kFlip},
    {"augment", "cutout", kCutout},
};

bool put_number(PyObject* numbers, const char* name, int64_t number) {
  PyObject* value = PyLong_FromLongLong(number);
  const bool done = value && PyDict_SetItemString(numbers, name, value) == 0;
  Py_XDECREF(value);
  return done;
}

// numbers(kind): a dict of numbers by name
PyObject* numbers(PyObject*, PyObject* kind) {
  PyObject* made = PyDict_New();
  bool done = made;
  const auto is = [&](const char* name) {
    return PyUnicode_Check(kind) && PyUnicode_CompareWithASCIIString(kind, name) == 0;
  };
  for (int i = 0; done && i < kFunctions && is("function"); i++)
    done = put_number(made, function_names[i], i);
  for (int i = 0; done && i < kReductions && is("reduction"); i++)
    done = put_number(made, reduction_names[i], i);
  for (const Number& x : all) {
    if (done && is(x.kind)) done = put_number(made, x.name, x.number);
  }
  if (!done) Py_CLEAR(made);
  return made;
}

PyMethodDef functions[] = {
    {"numbers", numbers, METH_O, "numbers(kind): the numbers of a kind of thing by their names."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_numbers(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace needle
