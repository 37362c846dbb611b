// What Trireme uses of NCCL and of the CUDA runtime, as a table of functions: the border between the program, which
// knows neither, and the plug-in libtrireme_nccl.so (plugin.cpp), which is compiled against both and knows nothing
// else. A library that does the same in the host's memory stands in for it in tests (tests/comm/stand_in.cpp).
//
// Communicators are made non-blocking (ncclConfig_t::blocking = 0), so nothing here waits for another rank but
// free_comm(), which has a limit. Nothing here throws. A function gives nccl_done, nccl_in_progress (state() tells how
// it ended), or a code for error_text().
#pragma once

#include <cstdint>

namespace trireme::comm {

inline constexpr int nccl_done = 0;
inline constexpr int nccl_in_progress = -1;
inline constexpr int nccl_id_bytes = 128;

/// Of what any order of summation gives the same; floating-point numbers are summed on the program's side.
enum class NcclOp : int32_t { sum, max, min };
enum class NcclInteger : int32_t { u8, i32, i64 };

/// Streams and events are the CUDA runtime's (cudaStream_t, cudaEvent_t), or the stand-in's; null is the stream of who
/// calls.
struct NcclTable {
  static constexpr uint32_t current_version = 1;
  uint32_t version;  ///< of this struct: a plug-in of another build is refused
  /// Not 0: a stand-in, whose device memory is the host's. 2: it is to be used as if it were memory apart.
  int32_t host_memory;

  int (*library)(char* text, int capacity);
  void (*error_text)(int code, char* text, int capacity);

  /// The device of the calling thread, from here on.
  int (*use_device)(int index);
  int (*make_event)(void** event);
  void (*free_event)(void* event);
  int (*record)(void* event, void* stream);
  /// What is put on `stream` from here on waits for `event`; the host does not.
  int (*wait_event)(void* stream, void* event);
  /// Whether all that was on the stream when the event was recorded is done.
  int (*query)(void* event, int* done);
  /// Between any two memories. Does not block where that of the host is from make_pinned().
  int (*copy)(void* to, const void* from, int64_t bytes, void* stream);
  int (*make_pinned)(void** memory, int64_t bytes);
  void (*free_pinned)(void* memory);

  // Of a stand-in alone; null otherwise. Streams of a device are torch's.
  int (*make_stream)(void** stream);
  void (*free_stream)(void* stream);
  int (*run_on)(void* stream, void (*task)(void*), void* argument);

  int (*make_id)(unsigned char* id);  ///< [nccl_id_bytes]
  /// One of `size` that were given this id.
  int (*make_comm)(const unsigned char* id, int rank, int size, void** comm);
  /// How the last call on the communicator ended, or what has gone wrong with it since.
  int (*state)(void* comm);
  /// Ends what is on its streams, in whatever state its peers are, and frees it.
  void (*abort_comm)(void* comm);
  /// Waits a few seconds for the peers to do the same, then as abort_comm().
  void (*free_comm)(void* comm);

  int (*start_group)();
  int (*end_group)();
  int (*send)(const void* data, int64_t bytes, int to, void* comm, void* stream);
  int (*receive)(void* data, int64_t bytes, int from, void* comm, void* stream);
  /// `input` may be block RANK of `output`.
  int (*all_gather)(const void* input, void* output, int64_t bytes, void* comm, void* stream);
  int (*broadcast)(void* data, int64_t bytes, int root, void* comm, void* stream);
  int (*all_reduce)(const void* input, void* output, int64_t count, NcclInteger type, NcclOp op, void* comm,
                    void* stream);
  /// `output` is used at the root alone.
  int (*reduce)(const void* input, void* output, int64_t count, NcclInteger type, NcclOp op, int root, void* comm,
                void* stream);
};

inline constexpr const char* nccl_plugin_file = "libtrireme_nccl.so";
inline constexpr const char* nccl_table_symbol = "trireme_nccl_table";

}  // namespace trireme::comm
