# bench_ops: see ops.cpp.
find_package(benchmark REQUIRED)
add_executable(bench_ops "${CMAKE_CURRENT_LIST_DIR}/ops.cpp" "${CMAKE_CURRENT_LIST_DIR}/aten_operations.cpp")
target_include_directories(bench_ops PRIVATE "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(bench_ops PRIVATE trireme_all trireme_flags benchmark::benchmark CLI11::CLI11)
trireme_precompile(bench_ops)
