# trireme_library(name [TORCH] SOURCES ... DEPENDS ...): a static library of one folder under src.
# TORCH: it includes torch headers; it gets the precompiled header, and is left out when TRIREME_TORCH is off.
function(trireme_library name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPENDS" ${ARGN})
  if(arg_TORCH AND NOT TRIREME_TORCH)
    return()
  endif()
  add_library(${name} STATIC ${arg_SOURCES})
  set_property(GLOBAL APPEND PROPERTY TRIREME_OBJECTS $<TARGET_OBJECTS:${name}>)  # of the library that is installed
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${name} PUBLIC ${arg_DEPENDS} trireme_fmt Threads::Threads PRIVATE trireme_flags)
  if(arg_TORCH)
    target_link_libraries(${name} PUBLIC trireme_torch)
    trireme_precompile(${name})
  endif()
endfunction()

# <ATen/ATen.h> takes 8 s to parse: it is compiled once, and every torch target reuses it. Not <torch/torch.h>: g++ instantiates
# what templates a precompiled header leaves pending in each file anew, which for all of torch is 10 s a file.
function(trireme_precompile target)
  if(NOT TARGET trireme_pch)
    # Written only when it differs: a new one makes every file that includes the header be compiled again.
    file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/pch.cpp" CONTENT "// holds the precompiled header\n")
    add_library(trireme_pch OBJECT "${CMAKE_BINARY_DIR}/pch.cpp")
    target_link_libraries(trireme_pch PUBLIC trireme_torch trireme_flags Threads::Threads)
    target_precompile_headers(trireme_pch PRIVATE <ATen/ATen.h> <fmt/format.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM trireme_pch)
  # Executables are compiled with -fPIE by default; the header was compiled with -fPIC, and the two do not mix.
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()

# trireme_test(name [TORCH] [ONE_THREAD] SOURCES ... DEPENDS ... [TIMEOUT s] [LABELS ...]): a GoogleTest binary run by ctest.
# Give LABELS unit to what the sanitizer builds run too: trireme_unit_tests builds these; ONE_THREAD leaves it out of the thread
# sanitizer's, which has nothing to see in what starts no threads. TRIREME_TEST_TIME_SCALE multiplies the
# time-outs, for builds in which everything takes longer.
set(TRIREME_TEST_TIME_SCALE 1 CACHE STRING "Factor on the time-outs of the tests")
add_custom_target(trireme_unit_tests)
function(trireme_test name)
  cmake_parse_arguments(arg "TORCH;ONE_THREAD" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if((arg_TORCH AND NOT TRIREME_TORCH) OR (arg_ONE_THREAD AND TRIREME_SANITIZE STREQUAL "thread"))
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  math(EXPR timeout_s "${arg_TIMEOUT} * ${TRIREME_TEST_TIME_SCALE}")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} trireme_flags GTest::gtest_main GTest::gmock)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_compile_definitions(${name} PRIVATE TRIREME_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TRIREME_BINARY_DIR="${CMAKE_BINARY_DIR}")
  if(arg_TORCH)
    trireme_precompile(${name})  # which was compiled with the build's own optimisation, and does not mix with another
  else()
    # What a test tests is optimised in its library; the test itself is compiled more often than run.
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  # Tests run beside each other, where a thread that spins while it waits takes the processor from the one that it waits for.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout_s} LABELS "${arg_LABELS}" ENVIRONMENT GOMP_SPINCOUNT=1000)
  if("unit" IN_LIST arg_LABELS)
    add_dependencies(trireme_unit_tests ${name})
  endif()
endfunction()

# trireme_test_levels(name): runs a test once more for each lower level of instructions (src/base/cpu_level.h); a CPU that lacks
# one skips it.
function(trireme_test_levels name)
  if(NOT TARGET ${name})
    return()
  endif()
  get_test_property(${name} TIMEOUT timeout_s)
  get_test_property(${name} LABELS labels)
  foreach(level portable avx2 avx512)
    add_test(NAME ${name}_${level} COMMAND ${name})
    set_tests_properties(${name}_${level} PROPERTIES TIMEOUT ${timeout_s} LABELS "${labels}" ENVIRONMENT "TRIREME_KERNELS=${level};GOMP_SPINCOUNT=1000"
      SKIP_REGULAR_EXPRESSION "asks for instructions that this CPU does not have")
  endforeach()
endfunction()
