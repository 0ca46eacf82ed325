// Which instruction sets this processor and this build have, and the kernels of one of them.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace needle {

std::vector<std::string> supported_isas();  // best first

// Loads the kernels of `name`, or of the best set if it is empty. Throws std::invalid_argument for
// a name that supported_isas() does not list, and for every name if that list is empty.
const Kernels* select_isa(const std::string& name);

}  // namespace needle
