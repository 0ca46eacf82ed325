// Changes of batches of images, between NumPy arrays: the host's side of data sets.
#include <nanobind/ndarray.h>

#include <algorithm>

#include "bind/calls.h"

namespace needle {
namespace {

template <class T, class... Shape>
using Table = nb::ndarray<T, Shape..., nb::c_contig, nb::device::cpu>;
using Batch = nb::ndarray<nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Source = nb::ndarray<nb::ro, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

DType dtype_of(const nb::dlpack::dtype& dtype) {
  if (dtype == nb::dtype<uint8_t>()) return kUInt8;
  if (dtype == nb::dtype<float>()) return kFloat32;
  throw nb::type_error("images: expected bytes or float32");
}

Images images_of(const Source& x) {
  const auto size = [&](int i) { return static_cast<int64_t>(x.shape(i)); };
  return {dtype_of(x.dtype()), size(0), size(1), size(2), size(3)};
}

void check_out(const Batch& out, const Images& like, DType dtype, bool same_size) {
  const auto size = [&](int i) { return static_cast<int64_t>(out.shape(i)); };
  const bool fits = size(0) == like.n && size(3) == like.channels &&
                    (!same_size || (size(1) == like.height && size(2) == like.width));
  if (!fits || dtype_of(out.dtype()) != dtype) throw nb::value_error("images: out does not fit");
}

template <class T>
void check_rows(const T& table, int64_t rows) {
  if (static_cast<int64_t>(table.shape(0)) != rows)
    throw nb::value_error("images: expected a row for each image, or a number for each channel");
}

void run_images(const char* refused, const Plan& plan, std::initializer_list<const void*> buffers) {
  if (refused) throw nb::value_error((std::string("images: ") + refused).c_str());
  std::vector<void*> addresses;
  for (const void* p : buffers) addresses.push_back(const_cast<void*>(p));
  void* scratch = plan.workspace ? workspace(plan.workspace) : nullptr;
  if (plan.workspace && !scratch) throw nb::python_error();
  const Released released;
  plan.run(&plan, addresses.data(), scratch);
}

void move_images(Batch out, Source x, Table<const int32_t, nb::shape<-1, 3>> places, bool reflect) {
  const Images images = images_of(x);
  check_out(out, images, images.dtype, true);
  check_rows(places, images.n);
  Plan plan;
  run_images(kernels->plan_move_images(&plan, images, reflect), plan,
             {out.data(), x.data(), places.data()});
}

void erase_images(Batch out, Source x, Table<const int32_t, nb::shape<-1, 4>> holes) {
  const Images images = images_of(x);
  check_out(out, images, images.dtype, true);
  check_rows(holes, images.n);
  Plan plan;
  run_images(kernels->plan_erase_images(&plan, images), plan, {out.data(), x.data(), holes.data()});
}

void normalise_images(Batch out, Source x, Table<const float, nb::shape<-1>> scale,
                      Table<const float, nb::shape<-1>> shift) {
  const Images images = images_of(x);
  check_out(out, images, kFloat32, true);
  check_rows(scale, images.channels);
  check_rows(shift, images.channels);
  Plan plan;
  run_images(kernels->plan_normalise_images(&plan, images), plan,
             {out.data(), x.data(), scale.data(), shift.data()});
}

// Several changes of the images at `indices`; `rows` are (step, value), see AugmentTable.
void augment_images(Batch out, Source x, Table<const int64_t, nb::shape<-1>> indices,
                    Table<const double, nb::shape<-1, 2>> rows,
                    Table<const float, nb::shape<-1>> scale,
                    Table<const float, nb::shape<-1>> shift, uint64_t seed, uint64_t epoch) {
  const Images images = images_of(x);
  const auto count = static_cast<int64_t>(indices.size());
  const bool normalise = scale.size() != 0;
  check_out(out, {images.dtype, count, images.height, images.width, images.channels},
            normalise ? kFloat32 : images.dtype, true);
  if (normalise) check_rows(scale, images.channels);
  check_rows(shift, static_cast<int64_t>(scale.size()));
  const int64_t* end = indices.data() + count;
  if (std::any_of(indices.data(), end, [&](int64_t i) { return i < 0 || i >= images.n; }))
    throw nb::value_error("images: an index is out of range");
  Plan plan;
  const AugmentTable table{seed, epoch, count, static_cast<int64_t>(rows.shape(0)), normalise};
  run_images(kernels->plan_augment_images(&plan, images, table), plan,
             {out.data(), x.data(), indices.data(), rows.data(), scale.data(), shift.data()});
}

void resize_images(Batch out, Source x) {
  const Images images = images_of(x);
  check_out(out, images, images.dtype, false);
  Plan plan;
  run_images(kernels->plan_resize_images(&plan, images, static_cast<int64_t>(out.shape(1)),
                                         static_cast<int64_t>(out.shape(2))),
             plan, {out.data(), x.data()});
}

void jitter_images(Batch out, Source x, Table<const float, nb::shape<-1, 3>> factors, double top) {
  const Images images = images_of(x);
  check_out(out, images, images.dtype, true);
  check_rows(factors, images.n);
  Plan plan;
  run_images(kernels->plan_jitter_images(&plan, images, top), plan,
             {out.data(), x.data(), factors.data()});
}

}  // namespace

void add_batch_kernels(nb::module_& m) {
  // noconvert: nanobind would fill a copy of an out that does not fit
  const auto exact = [](const char* name) { return nb::arg(name).noconvert(); };
  m.def("move_images", &move_images, exact("out"), exact("x"), exact("places"), exact("reflect"));
  m.def("erase_images", &erase_images, exact("out"), exact("x"), exact("holes"));
  m.def("normalise_images", &normalise_images, exact("out"), exact("x"), exact("scale"),
        exact("shift"));
  m.def("augment_images", &augment_images, exact("out"), exact("x"), exact("indices"),
        exact("rows"), exact("scale"), exact("shift"), exact("seed"), exact("epoch"));
  m.def("resize_images", &resize_images, exact("out"), exact("x"));
  m.def("jitter_images", &jitter_images, exact("out"), exact("x"), exact("factors"), exact("top"));
}

}  // namespace needle
