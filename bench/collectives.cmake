# bench_collectives_shm, bench_collectives_mpi: contenders of collectives.py. Without MPI the second is not built.
add_executable(bench_collectives_shm "${CMAKE_CURRENT_LIST_DIR}/collectives_shm.cpp")
target_link_libraries(bench_collectives_shm PRIVATE trireme_comm trireme_flags)
find_package(MPI COMPONENTS CXX)
if(MPI_CXX_FOUND)
  add_executable(bench_collectives_mpi "${CMAKE_CURRENT_LIST_DIR}/collectives_mpi.cpp")
  target_link_libraries(bench_collectives_mpi PRIVATE MPI::MPI_CXX trireme_flags)
endif()
