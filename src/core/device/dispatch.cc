#include "device/dispatch.h"

#include <dlfcn.h>
#if defined(NEEDLE_HAS_amx)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <stdexcept>

namespace needle {
namespace {

struct InstructionSet {
  const char* name;
  const char* object;  // that holds its kernels
  bool (*runs)();
};

#if defined(NEEDLE_HAS_amx)
// The matrix unit: the processor must have it, and the system let us use its registers.
bool has_matrix_unit() {
  constexpr unsigned kTiles = 1u << 24, kBFloat16 = 1u << 22;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTiles) && (d & kBFloat16) &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

// Best first; the build says which of them exist.
const InstructionSet kInstructionSets[] = {
#if defined(NEEDLE_HAS_amx)
    {"amx", "v4", [] { return __builtin_cpu_supports("x86-64-v4") != 0 && has_matrix_unit(); }},
#endif
#if defined(NEEDLE_HAS_v4)
    {"v4", "v4", [] { return __builtin_cpu_supports("x86-64-v4") != 0; }},
#endif
#if defined(NEEDLE_HAS_v3)
    {"v3", "v3", [] { return __builtin_cpu_supports("x86-64-v3") != 0; }},
#endif
#if defined(NEEDLE_HAS_baseline)
    {"baseline", "baseline", [] { return true; }},
#endif
};

std::string folder_of_module() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&folder_of_module), &info))
    throw std::runtime_error("cannot find the folder of needle's native module");
  std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

const Kernels* load_kernels(const InstructionSet& set) {
  const std::string path = folder_of_module() + "_cpu_" + set.object + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(std::string("cannot load the kernels: ") + dlerror());
  auto kernels =
      reinterpret_cast<const Kernels* (*)(const char*)>(dlsym(library, "needle_kernels"));
  if (!kernels) throw std::runtime_error(path + " does not export needle_kernels");
  return kernels(set.name);
}

}  // namespace

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const InstructionSet& set : kInstructionSets)
    if (set.runs()) names.push_back(set.name);
  return names;
}

const Kernels* select_isa(const std::string& name) {
  std::string built, known;
  for (const InstructionSet& set : kInstructionSets) {
    built += (built.empty() ? "" : ", ") + std::string(set.name);
    if (!set.runs()) continue;
    if (name.empty() || name == set.name) return load_kernels(set);
    known += (known.empty() ? "" : ", ") + std::string(set.name);
  }
  if (known.empty())
    throw std::invalid_argument("it was compiled for " + built + ", which this processor lacks");
  throw std::invalid_argument("NEEDLE_ISA=" + name + ": expected one of " + known +
                              " (what this processor and this build have)");
}

}  // namespace needle
