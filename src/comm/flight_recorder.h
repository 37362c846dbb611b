// The flight recorder: the last operations of a rank, in memory that outlives it.
//
// Each rank has a file, mapped and written in place: RUN/flight/rank-00000.flight. A store into a mapped file is in the
// page cache at once, so a reader sees what a rank did until it was killed, and can read it while it runs (a launcher,
// `trireme inspect`). It is a ring: record number i lies in place i modulo the capacity. Numbers are written
// last, so that a reader can tell a record that is being written.
//
// Without a file the memory is private, and serves this rank's own error report.
//
// One thread at a time writes. Errors: InputError when the file cannot be made.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"

namespace trireme::comm {

enum class FlightState : uint32_t {
  posted,   ///< this rank has come; others may not have
  started,  ///< all ranks have come
  done,
  failed
};
std::string_view name_of(FlightState state);

inline constexpr int64_t flight_dims = 5;

/// One operation. Times are nanoseconds of the steady clock; 0: not yet.
struct FlightRecord {
  int64_t number = 0;  ///< of this rank's operations, from 1
  int32_t group = 0;
  FlightState state = FlightState::posted;
  uint64_t packed = 0;  ///< what is called, see call.h
  uint64_t sequence = 0;
  int64_t count = 0;
  int64_t bytes = 0;           ///< of this rank's larger side
  std::vector<int64_t> shape;  ///< of the (first) tensor; longer shapes are cut to flight_dims
  int64_t posted = 0;
  int64_t started = 0;
  int64_t finished = 0;
};

/// A group of ranks whose operations are recorded.
struct FlightGroup {
  std::string axis;
  int64_t rank = 0;              ///< of the recording rank in it
  std::vector<int64_t> members;  ///< ranks of the world
  int64_t instance = 0;          ///< 0, 1, ...: groups of the same axis and members one after another
  int64_t generation = 0;        ///< of the job's ranks: see rebuild.h
};

class FlightRecorder {
 public:
  static constexpr int64_t default_capacity = 2000;

  /// Private memory.
  explicit FlightRecorder(int64_t capacity = 256);
  /// The file of `rank` in `folder`, which is made; what was there is replaced.
  FlightRecorder(const std::filesystem::path& folder, int64_t capacity, int64_t rank, int64_t world_size);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// A number for records of this group. Groups beyond the table's 64 share its last place.
  int32_t add_group(const FlightGroup& group);
  /// Returns the record's number; its `number` is not read.
  int64_t add(const FlightRecord& record);
  void started(int64_t number, int64_t time);
  void finished(int64_t number, int64_t time, FlightState state = FlightState::done);
  /// Why this rank failed; the first text stays.
  void set_failure(std::string_view message);

  int64_t capacity() const;
  /// The newest `most` records, oldest first.
  std::vector<FlightRecord> newest(int64_t most) const;
  /// The folder of the files; empty for private memory.
  const std::filesystem::path& folder() const { return folder_; }

  struct Memory;  // flight_memory.h: how it lies in the file

 private:
  Memory* memory_ = nullptr;
  size_t bytes_ = 0;
  std::filesystem::path folder_;
};

/// RUN/flight/rank-00003.flight
std::filesystem::path flight_path(const std::filesystem::path& folder, int64_t rank);

}  // namespace trireme::comm
