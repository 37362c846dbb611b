#include "comm/group.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "base/clock.h"
#include "base/error.h"
#include "base/host.h"
#include "base/log.h"
#include "comm/flight_log.h"

namespace trireme::comm {
namespace {

constexpr size_t records_in_a_log = 64;

double seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace

Group::Group(std::string axis, std::shared_ptr<const GroupSettings> settings)
    : settings_(settings != nullptr ? std::move(settings) : std::make_shared<GroupSettings>()),
      axis_(std::move(axis)),
      members_{0} {}

Group::Group(GroupOptions options)
    : settings_(options.settings != nullptr ? std::move(options.settings) : std::make_shared<GroupSettings>()),
      axis_(std::move(options.axis)),
      generation_(options.generation),
      members_(std::move(options.members)),
      rank_(options.rank),
      size_(static_cast<int64_t>(members_.size())),
      timeout_(options.timeout) {
  TRIREME_CHECK(rank_ >= 0 && rank_ < size_, "rank {} of {}", rank_, size_);
  TRIREME_CHECK(timeout_.count() > 0, "a deadline of {} ms", timeout_.count());
  const auto speed = settings_->links.find(axis_);
  if (speed != settings_->links.end()) link_ = EmulatedLink(speed->second);
}

Group::~Group() = default;

void Group::enroll_in_recorder(int64_t instance) {
  recorder_ = settings_->recorder != nullptr ? settings_->recorder : std::make_shared<FlightRecorder>();
  recorded_as_ = recorder_->add_group({axis_, rank_, members_, instance, generation_});
}

Group::Memory Group::allocate_alone(std::string_view name, int64_t each) {
  const auto bytes = static_cast<size_t>(std::max<int64_t>(each, 1));
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw_errno("reserve", fmt::format("{} bytes for {}", bytes, name), errno);
  static_cast<void>(::madvise(memory, bytes, MADV_HUGEPAGE));
  return {static_cast<std::byte*>(memory), std::shared_ptr<void>(memory, [bytes](void* at) { ::munmap(at, bytes); })};
}

bool Group::test(Operation& operation) {
  if (!operation.done) progress();
  return operation.done;
}

void Group::run(Call call) { wait(*post(std::move(call))); }

Group::Nanoseconds Group::link_now() const { return settings_->clock ? settings_->clock() : steady_nanoseconds(); }

std::string Group::signature() const {
  return fmt::format("rank {} on {}", members_[static_cast<size_t>(rank_)], host_name());
}

std::string Group::where(const Operation& operation) const {
  return fmt::format("{} #{} on axis {}", describe(operation), operation.sequence, axis_);
}

std::string Group::describe(const Operation& operation) const {
  const double factor = operation.call.reduction.factor;
  return comm::describe(operation.packed_, operation.call.count) +
         (factor == 1 ? "" : fmt::format(" times {}", factor));
}

void Group::dump_if_asked() const {
  if (!flight_dump_requested() || recorder_->folder().empty() || !take_flight_dump_request()) return;
  try {
    log::info("flight recorder: {}", dump_flight(recorder_->folder(), "on request (SIGUSR2)").string());
  } catch (const std::exception& error) {
    log::warning("no dump of the flight recorder: {}", error.what());
  }
}

std::string Group::flight_record() const {
  std::vector<FlightRecord> records = recorder_->newest(recorder_->capacity());
  std::erase_if(records, [&](const FlightRecord& record) { return record.group != recorded_as_; });
  // The newest are enough for a log; all of them are in the recorder's file.
  const size_t skipped = records.size() - std::min<size_t>(records.size(), records_in_a_log);
  std::string text;
  const Nanoseconds time = steady_nanoseconds();
  for (const FlightRecord& record : std::span(records).subspan(skipped)) {
    text += fmt::format("  {} #{} on axis {}, posted {:.6f} s ago, ", comm::describe(record.packed, record.count),
                        record.sequence, axis_, seconds(time - record.posted));
    text += record.state == FlightState::done
                ? fmt::format("took {:.6f} s\n", seconds(record.finished - record.posted))
                : fmt::format("{}\n", record.state == FlightState::failed ? "failed" : "under way");
  }
  return text;
}

WireCost Group::wire_cost(const Operation& operation) const {
  const int64_t element = operation.element_bytes_;
  return ring_cost(operation.call.kind, size_, operation.call.count * element, operation.largest_block_ * element,
                   operation.most_exchanged_ * element);
}

}  // namespace trireme::comm
