# Language level, warnings, ccache and build type shared by every target of ours.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
# Asserts of the standard library stay on in debug builds only; release keeps frame pointers so that perf can walk stacks.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG -fno-omit-frame-pointer")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g -D_GLIBCXX_ASSERTIONS")

# A precompiled header hides macros and times from ccache unless it is told not to mind.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${CCACHE_PROGRAM}")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

# A newer compiler may warn of more than ours does; that must not keep a user from building.
set(werror OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(werror ON)
endif()
option(TRIREME_WERROR "Warnings are errors; by default with GCC 12, which the tests of every change use" ${werror})

add_library(trireme_flags INTERFACE)
# g++ 12 reports -Wrestrict on `string + string` where there is nothing (GCC bug 105329).
target_compile_options(trireme_flags INTERFACE -Wall -Wextra $<$<BOOL:${TRIREME_WERROR}>:-Werror> -Wno-psabi -Wno-restrict)
if(TRIREME_SANITIZE STREQUAL "address")
  target_compile_options(trireme_flags INTERFACE -fsanitize=address,undefined -fno-sanitize=null,object-size,vptr -fno-sanitize-recover=undefined -g1 -O1)
  target_link_options(trireme_flags INTERFACE -fsanitize=address,undefined)
elseif(TRIREME_SANITIZE STREQUAL "thread")
  target_compile_options(trireme_flags INTERFACE -fsanitize=thread -g1 -O1)
  target_link_options(trireme_flags INTERFACE -fsanitize=thread)
elseif(TRIREME_SANITIZE)
  message(FATAL_ERROR "TRIREME_SANITIZE=${TRIREME_SANITIZE} is not known; use address or thread")
endif()
