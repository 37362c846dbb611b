# bench_loader: see loader.cpp; run it with loader.py.
add_executable(bench_loader "${CMAKE_CURRENT_LIST_DIR}/loader.cpp")
target_link_libraries(bench_loader PRIVATE trireme_data trireme_flags)
