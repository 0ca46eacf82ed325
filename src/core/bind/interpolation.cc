// Products of images with banded matrices: interpolation.
#include "bind/calls.h"
#include <algorithm>

namespace needle {
namespace {

const Array* optional(nb::handle x) { return x.is_none() ? nullptr : native(x); }

// A matrix for an axis of the image: where the rows of it begin, and their elements. Returns how
// many they are in a row.
int64_t check_bands(const Array* first, const Array* weight, const Array* image,
                    const Array* result, int axis) {
  check_dense(first, "banded");
  check_dense(weight, "banded");
  const int64_t m = result->spec->shape[axis];
  const bool fits = first->spec->code == kInt64 && weight->spec->code == image->spec->code &&
                    weight->spec->ndim == 2 && first->spec->size == m &&
                    weight->spec->shape[0] == m;
  if (!fits) throw nb::value_error("banded: expected a start and a row of weights for each result");
  const int64_t span = weight->spec->shape[1], last = image->spec->shape[axis] - span;
  if (!is_known(first)) refuse_dry("the rows of a banded matrix depend on values");
  const auto* begin = reinterpret_cast<const int64_t*>(address(first));
  if (std::any_of(begin, begin + m, [&](int64_t i) { return i < 0 || i > last; })) {
    throw nb::value_error("banded: a row of the matrix goes beyond the axis");
  }
  return span;
}

void banded(nb::handle out, nb::handle x, nb::handle first, nb::handle weight,
            nb::handle second_first, nb::handle second_weight) {
  const Array *result = native(out), *image = native(x);
  if (result->spec->ndim != 4 || image->spec->ndim != 4) {
    throw nb::value_error("banded: expected [rows, n, width, inner]");
  }
  const Array *starts = optional(second_first), *factors = optional(second_weight);
  if (!starts != !factors)
    throw nb::value_error("banded: expected both starts and factors, or neither");
  const int64_t span = check_bands(native(first), native(weight), image, result, 1);
  const int64_t second_span = starts ? check_bands(starts, factors, image, result, 2) : 0;
  Plan plan;
  check(kernels->plan_banded(&plan, operand(image), operand(result), span, second_span), "banded",
        image);
  run(plan, {result, image, native(first), native(weight), starts, factors});
}

}  // namespace

void add_image_kernels(nb::module_& m) {
  m.def("banded", &banded, nb::arg("out"), nb::arg("x"), nb::arg("first"), nb::arg("weight"),
        nb::arg("second_first").none(), nb::arg("second_weight").none());
}

}  // namespace needle
