// The functions of the table, declared as its fields are: kernels.h describes each.
#pragma once
#include <type_traits>

#include "isa/isa.h"

namespace needle::NEEDLE_ISA {

#define DECLARE(name) std::remove_pointer_t<decltype(Kernels::name)> name;
NEEDLE_KERNELS(DECLARE)
#undef DECLARE

void use_matrix_unit(bool on);

}  // namespace needle::NEEDLE_ISA
