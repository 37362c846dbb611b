# Everything that is not ours: Debian packages, and LibTorch from the private Python environment.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(tomlplusplus REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(JEMALLOC REQUIRED IMPORTED_TARGET jemalloc)
find_package(ZLIB REQUIRED)

# The torch wheel: an explicit TRIREME_PYTHON, or the environment that `make build` creates.
set(TRIREME_PYTHON "${CMAKE_CURRENT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "Python that has the torch wheel")
# Looked for anew each time, unless it is given: the environment may be made, or made anew, after the first call.
set(TRIREME_TORCH_ROOT "" CACHE PATH "Folder of the torch package (holds include, lib, share); empty: the one of TRIREME_PYTHON")
set(torch_root "${TRIREME_TORCH_ROOT}")
if(NOT torch_root)
  if(EXISTS "${TRIREME_PYTHON}")
    execute_process(
      COMMAND "${TRIREME_PYTHON}" -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE torch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()

# fmt: the wheel ships its headers and they shadow Debian's, so the wheel's copy is the one that everyone uses. Its functions are
# compiled once, in src/base/fmt.cpp.
if(EXISTS "${torch_root}/include/fmt/core.h")
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/include-fmt")
  file(CREATE_LINK "${torch_root}/include/fmt" "${CMAKE_BINARY_DIR}/include-fmt/fmt" SYMBOLIC)
  add_library(trireme_fmt STATIC "${CMAKE_CURRENT_SOURCE_DIR}/src/base/fmt.cpp")
  target_include_directories(trireme_fmt SYSTEM PUBLIC "${CMAKE_BINARY_DIR}/include-fmt")
elseif(NOT TRIREME_TORCH)
  find_package(fmt REQUIRED)
  add_library(trireme_fmt INTERFACE)
  target_link_libraries(trireme_fmt INTERFACE fmt::fmt)
endif()

if(TRIREME_TORCH)
  if(NOT EXISTS "${torch_root}/share/cmake/Torch/TorchConfig.cmake")
    message(FATAL_ERROR
      "LibTorch was not found. Run `make venv`, which puts the torch wheel into .venv, or pass "
      "-DTRIREME_PYTHON=/path/to/python of an environment that has torch, or -DTRIREME_TORCH_ROOT=/path/to/torch.")
  endif()
  # A CUDA build of the wheel makes find_package(Torch) look for the CUDA toolkit, and stop with a message that does not help.
  if(EXISTS "${torch_root}/lib/libtorch_cuda.so")
    find_program(TRIREME_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin)
    if(NOT TRIREME_NVCC)
      message(FATAL_ERROR
        "The torch in ${torch_root} is a CUDA build, and there is no CUDA toolkit (nvcc) on this machine. Either\n"
        "  use the CPU build:   rm -rf .venv && TORCH_INDEX=https://download.pytorch.org/whl/cpu make venv\n"
        "  or give the toolkit: CUDA_HOME=/path/to/cuda cmake --preset cuda")
    endif()
  endif()
  list(PREPEND CMAKE_PREFIX_PATH "${torch_root}")
  find_package(Torch REQUIRED)
  find_package(OpenMP REQUIRED)
  # at::parallel_for is a header: in code compiled without OpenMP it silently runs on one thread.
  # The wheel's own libgomp.so.1 has the same soname as Debian's and comes first in the run path, so there is one team.
  add_library(trireme_torch INTERFACE)
  target_include_directories(trireme_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
  target_link_libraries(trireme_torch INTERFACE ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX trireme_fmt)
  separate_arguments(torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(trireme_torch INTERFACE ${torch_flags})
  list(APPEND CMAKE_BUILD_RPATH "${torch_root}/lib")
endif()

if(TRIREME_TESTS)
  find_package(GTest REQUIRED)
endif()
