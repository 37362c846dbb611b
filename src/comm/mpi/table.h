// What Trireme uses of an MPI library, as a table of functions: the border between the program, which knows no MPI, and
// the plug-in libtrireme_mpi.so (plugin.cpp), which is compiled against one MPI library and knows nothing else.
//
// All of Trireme's own logic is on the program's side (mpi_group.h), so errors, logs and records are one copy each, and
// another MPI library asks for the plug-in alone to be built again. Nothing here throws: a function returns 0, or MPI's
// error code, which error_text() puts into words.
#pragma once

#include <cstdint>

namespace trireme::comm {

/// A communicator and a request of MPI, as the library keeps them: a pointer in Open MPI, an int in MPICH.
struct MpiComm {
  alignas(8) unsigned char bytes[8] = {};
};
struct MpiRequest {
  alignas(8) unsigned char bytes[8] = {};
};

/// What integers are reduced by; floating-point numbers are reduced on the program's side, in rank order.
enum class MpiOp : int32_t { sum, max, min };
enum class MpiInteger : int32_t { u8, i32, i64, u64 };

struct MpiTable {
  static constexpr uint32_t current_version = 1;
  uint32_t version;  ///< of this struct: a plug-in of another build is refused

  /// `threads_at_once`: whether the library serves several threads at the same time.
  int (*initialize)(int* rank, int* size, int* threads_at_once);
  int (*finalize)();
  int (*library)(char* text, int capacity);
  void (*error_text)(int code, char* text, int capacity);

  /// A communicator of all ranks, apart from the library's own.
  int (*duplicate_world)(MpiComm* comm);
  /// Of these ranks of `of`; they alone call it. Blocks until they have.
  int (*create_group)(const MpiComm* of, const int* ranks, int count, int tag, MpiComm* comm);
  int (*free_comm)(MpiComm* comm);

  int (*send)(const void* data, int count, int width, int to, int tag, const MpiComm* comm, MpiRequest* request);
  int (*receive)(void* data, int count, int width, int from, int tag, const MpiComm* comm, MpiRequest* request);
  /// Whether a message with `tag` has come; from whom, and how many bytes.
  int (*probe)(int tag, const MpiComm* comm, int* found, int* from, int* bytes);
  /// Blocks; for what probe() has found.
  int (*take)(void* data, int bytes, int from, int tag, const MpiComm* comm);

  // In place: this rank's block lies in `data` already. Counts and starts are elements of `width` bytes, and must live
  // until the request is complete.
  int (*all_gather)(void* data, const int* counts, const int* starts, int width, const MpiComm* comm,
                    MpiRequest* request);
  /// `data`: at the root all blocks, of which its own lies there already; elsewhere its own block.
  int (*gather)(void* data, int count, const int* counts, const int* starts, int width, int root, const MpiComm* comm,
                MpiRequest* request);
  int (*scatter)(void* data, int count, const int* counts, const int* starts, int width, int root, const MpiComm* comm,
                 MpiRequest* request);
  int (*broadcast)(void* data, int count, int width, int root, const MpiComm* comm, MpiRequest* request);
  /// In place.
  int (*all_reduce)(void* data, int count, MpiInteger type, MpiOp op, const MpiComm* comm, MpiRequest* request);
  /// In place at the root; elsewhere `data` is read.
  int (*reduce)(void* data, int count, MpiInteger type, MpiOp op, int root, const MpiComm* comm, MpiRequest* request);

  int (*test)(MpiRequest* request, int* done);
};

inline constexpr const char* mpi_plugin_file = "libtrireme_mpi.so";
inline constexpr const char* mpi_table_symbol = "trireme_mpi_table";

}  // namespace trireme::comm
