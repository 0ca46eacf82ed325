#include "dispatch.h"

#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>

namespace needle {
namespace {

struct InstructionSet {
  const char* name;
  bool (*runs)();
};

// Best first; the build says which of them exist.
const InstructionSet kInstructionSets[] = {
#if defined(NEEDLE_HAS_v4)
    {"v4", [] { return __builtin_cpu_supports("x86-64-v4") != 0; }},
#endif
#if defined(NEEDLE_HAS_v3)
    {"v3", [] { return __builtin_cpu_supports("x86-64-v3") != 0; }},
#endif
    {"baseline", [] { return true; }},
};

std::string folder_of_module() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&folder_of_module), &info))
    throw std::runtime_error("cannot find the folder of needle's native module");
  std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

}  // namespace

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const InstructionSet& set : kInstructionSets)
    if (set.runs()) names.push_back(set.name);
  return names;
}

const Kernels* select_isa(const std::string& name) {
  std::vector<std::string> names = supported_isas();
  const std::string& chosen = name.empty() ? names.front() : name;
  if (std::find(names.begin(), names.end(), chosen) == names.end()) {
    std::string known = names.front();
    for (size_t i = 1; i < names.size(); ++i) known += ", " + names[i];
    throw std::invalid_argument("NEEDLE_ISA=" + chosen + ": this processor runs " + known);
  }
  std::string path = folder_of_module() + "_cpu_" + chosen + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(std::string("cannot load the kernels: ") + dlerror());
  auto kernels = reinterpret_cast<const Kernels* (*)()>(dlsym(library, "needle_kernels"));
  if (!kernels) throw std::runtime_error(path + " does not export needle_kernels");
  return kernels();
}

}  // namespace needle
