# The program, and what a program with models of its own is built from: one library of all folders, the headers that such a
# program needs, and a CMake package that finds what they rest on. docs/own-model.md shows the use.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# One archive, since a user has no use for our folders as libraries. The program is linked from it too, so it is always there.
get_property(objects GLOBAL PROPERTY TRIREME_OBJECTS)
add_library(trireme_all STATIC ${objects} $<TARGET_OBJECTS:trireme_fmt>)
set_target_properties(trireme_all PROPERTIES OUTPUT_NAME trireme EXPORT_NAME trireme LINKER_LANGUAGE CXX)
target_compile_features(trireme_all INTERFACE cxx_std_20)
# What the installed one rests on is found by trireme-config.cmake, with the same list.
target_link_libraries(trireme_all INTERFACE $<BUILD_INTERFACE:trireme_torch> $<BUILD_INTERFACE:Threads::Threads>
  $<BUILD_INTERFACE:PkgConfig::XXHASH> $<BUILD_INTERFACE:PkgConfig::PCRE2> $<BUILD_INTERFACE:PkgConfig::ZSTD>
  $<BUILD_INTERFACE:ZLIB::ZLIB> $<BUILD_INTERFACE:tomlplusplus::tomlplusplus>)
# malloc of everything below ATen (memory/caching_allocator.cpp sets it up). A sanitizer has a malloc of its own.
if(NOT TRIREME_SANITIZE)
  target_link_libraries(trireme_all INTERFACE $<BUILD_INTERFACE:PkgConfig::JEMALLOC>)
endif()
target_include_directories(trireme_all INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

add_executable(trireme "${PROJECT_SOURCE_DIR}/src/cli/main.cpp")
target_include_directories(trireme PRIVATE "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(trireme PRIVATE trireme_all trireme_flags)
add_dependencies(trireme trireme_supervisor)
if(TARGET trireme_mpi)
  add_dependencies(trireme trireme_mpi)
endif()
# The wheel's libraries stay where they are.
set_target_properties(trireme PROPERTIES INSTALL_RPATH "${torch_root}/lib")

# A library with a sanitizer in it would ask the same of every program that links it.
if(TRIREME_SANITIZE)
  return()
endif()

# What a model is written with, or a training loop of one's own. Headers include each other by their folder; once installed they do so
# below trireme/, so that a program may have a folder config/ or data/ of its own. A header that this list lacks and one of it includes
# is an error.
set(TRIREME_PUBLIC_HEADERS
  base/cpu_level.h base/error.h base/file.h base/log.h base/profile.h base/random.h
  describe/architecture.h describe/divisors.h describe/model_shape.h describe/recompute.h describe/rope.h
  config/config.h
  ops/add.h ops/attention.h ops/dispatch.h ops/embedding.h ops/function.h ops/gradient_sink.h ops/kernels.h ops/linear.h
  ops/linear_cross_entropy.h ops/norm.h ops/rotary.h ops/activation.h ops/dropout.h
  nn/offload.h nn/parameter.h nn/recompute.h
  models/generate.h models/model.h models/register.h
  comm/communicator.h comm/mesh.h comm/rank_grid.h comm/reduce_op.h
  parallel/foreign_module.h parallel/level.h
  cli/main.h cli/run_workers.h)
set(include_root "${CMAKE_BINARY_DIR}/install/include/trireme")
set(TRIREME_PUBLIC_INCLUDE "${CMAKE_BINARY_DIR}/install/include")
file(REMOVE_RECURSE "${include_root}")
foreach(header IN LISTS TRIREME_PUBLIC_HEADERS)
  file(READ "${PROJECT_SOURCE_DIR}/src/${header}" text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${header}")
  string(REGEX MATCHALL "#include \"[^\"]+\"" includes "${text}")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE ".*\"(.*)\"" "\\1" included "${include}")
    if(NOT included IN_LIST TRIREME_PUBLIC_HEADERS)
      message(FATAL_ERROR "src/${header} is installed and includes ${included}, which is not: see TRIREME_PUBLIC_HEADERS")
    endif()
  endforeach()
  string(REGEX REPLACE "#include \"([^\"]+)\"" "#include \"trireme/\\1\"" text "${text}")
  file(WRITE "${include_root}/${header}" "${text}")
endforeach()

set(trireme_package "${CMAKE_INSTALL_LIBDIR}/cmake/trireme")
set(trireme_torch_version "${Torch_VERSION}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/trireme-config.cmake.in" "${CMAKE_BINARY_DIR}/install/trireme-config.cmake"
  INSTALL_DESTINATION "${trireme_package}" NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Nothing promises yet that headers stay as they are.
write_basic_package_version_file("${CMAKE_BINARY_DIR}/install/trireme-config-version.cmake" COMPATIBILITY ExactVersion)

install(TARGETS trireme RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(TARGETS trireme_supervisor RUNTIME DESTINATION lib/trireme)  # where the program looks (comm/plugin_place.cpp)
if(TARGET trireme_mpi)
  install(TARGETS trireme_mpi LIBRARY DESTINATION lib/trireme)  # where the program looks (comm/mpi/mpi_world.cpp)
endif()
install(TARGETS trireme_all EXPORT trireme ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${include_root}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT trireme NAMESPACE trireme:: FILE trireme-targets.cmake DESTINATION "${trireme_package}")
install(FILES "${CMAKE_BINARY_DIR}/install/trireme-config.cmake" "${CMAKE_BINARY_DIR}/install/trireme-config-version.cmake"
  DESTINATION "${trireme_package}")
