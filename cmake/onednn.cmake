# Optional: convolutions by oneDNN, as a plug-in. Headers and library come from the packages
# onednn-devel-cpu-gomp and onednn-cpu-gomp (or the system); only the plug-in is linked with the
# library, and it is opened at run time where the library is found.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
"import importlib.metadata as metadata
for package, name in (('onednn-devel-cpu-gomp', 'dnnl.hpp'), ('onednn-cpu-gomp', 'libdnnl.so.3')):
    try:
        found = [f.locate().resolve() for f in metadata.files(package) or () if f.name == name]
    except metadata.PackageNotFoundError:
        found = []
    print(min(found, key=lambda path: len(path.parts)).parent if found else '', end=';')"
  OUTPUT_VARIABLE folders COMMAND_ERROR_IS_FATAL ANY)
list(GET folders 0 include_hint)
list(GET folders 1 library_hint)
find_path(DNNL_INCLUDE dnnl.hpp HINTS "${include_hint}")
find_file(DNNL_LIBRARY libdnnl.so.3 HINTS "${library_hint}" PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
if(NOT DNNL_INCLUDE OR NOT DNNL_LIBRARY)
  message(FATAL_ERROR "USE_DNNL=ON, but dnnl.hpp or libdnnl.so.3 was not found. "
    "Try: pip install onednn-devel-cpu-gomp==2023.2.0, or configure with -DUSE_DNNL=OFF.")
endif()
message(STATUS "oneDNN: ${DNNL_INCLUDE}, ${DNNL_LIBRARY}")

find_package(OpenMP REQUIRED COMPONENTS CXX)  # oneDNN's threads
add_library(needle_onednn MODULE src/onednn/convolution.cc)
target_include_directories(needle_onednn SYSTEM PRIVATE "${DNNL_INCLUDE}")
target_link_libraries(needle_onednn PRIVATE needle_flags "${DNNL_LIBRARY}" OpenMP::OpenMP_CXX)
set_target_properties(needle_onednn PROPERTIES
  PREFIX "" OUTPUT_NAME _onednn LIBRARY_OUTPUT_DIRECTORY ${NEEDLE_OUTPUT}
  SKIP_BUILD_RPATH ON)  # found by its SONAME: who opens the plug-in has opened the library before
install(TARGETS needle_onednn LIBRARY DESTINATION .)
