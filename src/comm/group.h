// A group: the ranks of one axis, and the calls among them. The torch-free core under Communicator, whose contract
// (communicator.h) is this class's too.
//
// What every backend shares is here: the checks that a call goes through before any peer sees it (prepare.cpp), how it
// lies in memory, its record, and the words of errors. How calls get done is the backend's: ShmGroup (shm_group.h)
// through the memory of one machine, MpiGroup (mpi/mpi_group.h) through MPI, NcclGroup (nccl/nccl_group.h) through
// NCCL.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/flight_recorder.h"
#include "comm/layout.h"
#include "comm/link.h"

namespace trireme::comm {

/// What ranks compare when they call (comm.check).
enum class CheckLevel : uint8_t {
  calls,   ///< operation, operator, dtype, counts, root, splits
  shapes,  ///< also the tensors' shapes
  all,     ///< also that no input of a reduction holds NaN
};

/// What all groups of a process share.
struct GroupSettings {
  std::function<void()>
      disturb;  ///< of tests: called before each call is posted, and before and after it is waited for
  CheckLevel check = CheckLevel::calls;
  std::map<std::string, LinkSpeed> links;    ///< of emulated axes, by name
  std::shared_ptr<FlightRecorder> recorder;  ///< null: a small private one for each group
  std::function<int64_t()> clock;            ///< of emulated links, nanoseconds; null: the steady clock
};

struct GroupOptions {
  std::string axis = "world";
  /// World ranks of the group's members, in the order of the group's ranks; empty: all ranks.
  std::vector<int64_t> members;
  int64_t rank = 0;  ///< of this process in the group
  std::chrono::milliseconds timeout{600'000};
  std::shared_ptr<const GroupSettings> settings;  ///< null: the defaults
  int64_t generation = 0;                         ///< of the job's ranks: see rebuild.h
};

/// A call under way. Its state is the group's own business.
class Operation {
 public:
  explicit Operation(Call what) : call(std::move(what)) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  Call call;
  uint64_t sequence = 0;
  bool done = false;

 protected:
  friend class Group;
  friend class ShmGroup;
  friend class MpiGroup;
  friend class NcclGroup;

  const void* input(int64_t t) const;
  void* output(int64_t t) const;

  Layout in_, out_;  // this rank's sides
  uint64_t packed_ = 0;
  int64_t element_bytes_ = 0;
  int64_t input_bytes_ = 0;  // of an element of the inputs
  int64_t record_ = 0;       // number in the flight recorder
  int64_t release_ = 0;      // when an emulated link lets it go
  int64_t largest_block_ = 0;
  int64_t most_given_ = 0;      // elements, by any rank
  int64_t most_exchanged_ = 0;  // elements that a rank gives to others, or gets
};

class Group {
 public:
  virtual ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  const std::string& axis() const { return axis_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const std::shared_ptr<const GroupSettings>& settings() const { return settings_; }
  /// World ranks of the members, in the order of the group's ranks.
  const std::vector<int64_t>& members() const { return members_; }
  int64_t generation() const { return generation_; }
  const EmulatedLink& link() const { return link_; }

  /// Records the arrival; does not wait, unless very many earlier calls are still under way. Throws InputError for a
  /// call that cannot be right, before any peer sees it.
  virtual std::shared_ptr<Operation> post(Call call) = 0;
  void wait(Operation& operation) { wait(operation, timeout_); }
  /// With a deadline of its own. It ends the group as the group's own deadline does.
  virtual void wait(Operation& operation, std::chrono::milliseconds timeout) = 0;
  /// progress(), then whether the operation is complete.
  bool test(Operation& operation);
  virtual void progress() = 0;
  void run(Call call);  ///< post and wait

  /// A group of `options.members` (of the world's ranks, more than one), which alone call this.
  virtual std::shared_ptr<Group> subgroup(GroupOptions options) = 0;

  /// Whether calls may be given memory of a device (Call::on_device).
  virtual bool reaches_devices() const { return false; }
  /// Whether ranks reach each other's memory: shared_alloc() then gives memory that is the same on all ranks.
  virtual bool shares_memory() const = 0;
  /// Zero at first. `each` bytes for each rank, one after another, or with one_for_all `each` bytes that are one memory
  /// for all ranks where they share any. Returns this rank's part; the owner holds it.
  struct Memory {
    std::byte* data = nullptr;
    std::shared_ptr<void> owner;
  };
  virtual Memory allocate(std::string_view name, int64_t each, bool one_for_all) = 0;
  /// Whether `memory` is one for all ranks.
  virtual bool is_once(const void* memory) const = 0;

  /// Tells the peers that this rank gives up.
  virtual void abort(const std::string& message, bool with_record = true) noexcept = 0;
  /// The newest calls, a line each.
  std::string flight_record() const;

 protected:
  using Nanoseconds = int64_t;

  Group(std::string axis, std::shared_ptr<const GroupSettings> settings);
  /// `options.members` is not empty.
  explicit Group(GroupOptions options);
  /// Once the number of this group among those of the same axis and members is known.
  void enroll_in_recorder(int64_t instance);

  // prepare.cpp: what happens to a call before any peer sees it
  void prepare(Operation& operation);
  void check(const Operation& operation) const;
  void check_overlap(const Operation& operation) const;
  void check_numbers(const Operation& operation);
  void lay_out(Operation& operation) const;
  void run_alone(const Operation& operation) const;
  uint64_t detail_of(const Operation& operation) const;
  /// Returns when it was posted.
  Nanoseconds record(Operation& operation);
  /// Number of the next collective, for errors.
  virtual uint64_t next_sequence() const = 0;
  /// Ends the group with `text` as this rank's fault, on all ranks.
  [[noreturn]] virtual void refuse_numbers(const std::string& text) = 0;

  // group.cpp
  /// What allocate() gives where ranks share no memory.
  static Memory allocate_alone(std::string_view name, int64_t each);
  Nanoseconds link_now() const;
  WireCost wire_cost(const Operation& operation) const;
  void dump_if_asked() const;
  std::string where(const Operation& operation) const;
  std::string describe(const Operation& operation) const;
  std::string signature() const;

  std::shared_ptr<const GroupSettings> settings_;
  std::string axis_;
  int64_t generation_ = 0;
  std::vector<int64_t> members_;
  int64_t rank_ = 0;
  int64_t size_ = 1;
  std::chrono::milliseconds timeout_{600'000};
  EmulatedLink link_;
  std::shared_ptr<FlightRecorder> recorder_;
  int32_t recorded_as_ = 0;  // the recorder's number of this group
};

}  // namespace trireme::comm
