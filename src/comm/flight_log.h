// Reading flight recorders (flight_recorder.h): what each rank did last, and which of them is behind. The writers may
// be running, stopped or dead.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "comm/flight_recorder.h"
#include "comm/process_state.h"

namespace trireme::comm {

struct FlightLog {
  int64_t rank = 0;
  int64_t world_size = 0;
  int pid = 0;
  std::string host;
  /// Of the process, if it ran on this machine; otherwise unknown.
  ProcessState process = ProcessState::unknown;
  int64_t wall_minus_steady = 0;  ///< nanoseconds: adds to the records' times to give those since 1970
  std::string failure;            ///< why the rank failed; empty: it has not said so
  int64_t recorded = 0;           ///< operations in all, of which the newest are below
  std::vector<FlightGroup> groups;
  std::vector<FlightRecord> records;  ///< oldest first
};

/// Throws InputError when the file is not a flight recorder, or one of another build.
FlightLog read_flight_log(const std::filesystem::path& file);
/// Those of all ranks in RUN/flight, by rank. Throws InputError when there is none.
std::vector<FlightLog> read_flight_logs(const std::filesystem::path& folder);

/// One object: ranks, each with its operations; groups, each with who is behind.
nlohmann::json to_json(const std::vector<FlightLog>& logs);

/// For a person: for each group which rank has come to which operation, who is behind, which calls differ, which
/// messages are on their way; then each rank's last `last` operations.
std::string flight_report(const std::vector<FlightLog>& logs, int64_t last = 8);

/// A line for each group in which a rank is behind, or calls differ; empty when there is none.
std::string flight_summary(const std::vector<FlightLog>& logs, std::string_view indent);

/// Before workers start: takes away the files of `count` ranks from `first_rank` on, and those of ranks that the run
/// does not have any more, so that no dump mixes two lives of a run.
void remove_flight_logs(const std::filesystem::path& folder, int64_t first_rank, int64_t count, int64_t world_size);

/// A signal handler may call it: the next operation of a group of this process, or its next look at late peers, writes
/// a dump. Without a recorder in a file nothing happens.
void request_flight_dump() noexcept;
bool flight_dump_requested() noexcept;
/// True once for each request.
bool take_flight_dump_request() noexcept;

/// Writes to_json() of the folder's recorders into FOLDER/dump-TIME.json and returns its path. `why` is kept in it.
std::filesystem::path dump_flight(const std::filesystem::path& folder, std::string_view why);

}  // namespace trireme::comm
