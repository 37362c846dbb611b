#include "comm/flight_progress.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace trireme::comm {
namespace {

using Key = std::tuple<int64_t, std::string, std::vector<int64_t>, int64_t>;

void add_record(GroupProgress& group, RankProgress& rank, const FlightRecord& record) {
  const Unpacked call = unpack(record.packed);
  const std::string what = describe(record.packed, record.count);
  if (is_message(call.kind)) {
    if (record.state != FlightState::done) {
      group.messages.push_back(
          fmt::format("rank {}: {} #{} is {}", rank.rank, what, record.sequence, name_of(record.state)));
    }
    return;
  }
  if (record.sequence > rank.posted) {
    rank.posted = record.sequence;
    rank.call = what;
  }
  if (record.state == FlightState::done) rank.done = std::max(rank.done, record.sequence);
}

// The calls that ranks made under one number, among the numbers that are still recorded.
using Calls = std::map<uint64_t, std::map<int64_t, const FlightRecord*>>;

void find_differences(GroupProgress& group, const Calls& calls) {
  for (const auto& [sequence, of_ranks] : calls) {
    const auto& [first_rank, first] = *of_ranks.begin();
    for (const auto& [rank, record] : of_ranks) {
      const bool may_differ = unpack(first->packed).kind == Kind::all_to_all && unpack(first->packed).uneven;
      if (record->packed == first->packed && (record->count == first->count || may_differ)) continue;
      group.differs.push_back(fmt::format("#{}: rank {} calls {}, rank {} calls {}", sequence, first_rank,
                                          describe(first->packed, first->count), rank,
                                          describe(record->packed, record->count)));
    }
  }
}

}  // namespace

std::vector<GroupProgress> group_progress(const std::vector<FlightLog>& logs) {
  std::map<Key, GroupProgress> groups;
  std::map<Key, Calls> calls;
  for (const FlightLog& log : logs) {
    for (size_t g = 0; g < log.groups.size(); ++g) {
      const FlightGroup& from = log.groups[g];
      const Key key(from.generation, from.axis, from.members, from.instance);
      GroupProgress& group = groups[key];
      group.axis = from.axis;
      group.members = from.members;
      group.instance = from.instance;
      group.generation = from.generation;
      RankProgress rank;
      rank.rank = log.rank;
      for (const FlightRecord& record : log.records) {
        if (record.group != static_cast<int32_t>(g)) continue;
        add_record(group, rank, record);
        if (!is_message(unpack(record.packed).kind)) calls[key][record.sequence][log.rank] = &record;
      }
      group.ranks.push_back(std::move(rank));
    }
  }
  std::vector<GroupProgress> result;
  for (auto& [key, group] : groups) {
    uint64_t furthest = 0;
    for (const RankProgress& rank : group.ranks) furthest = std::max(furthest, rank.posted);
    for (const RankProgress& rank : group.ranks) {
      if (rank.posted < furthest) group.behind.push_back(rank.rank);
    }
    for (const int64_t member : group.members) {
      if (std::none_of(group.ranks.begin(), group.ranks.end(), [&](const auto& r) { return r.rank == member; })) {
        group.without_record.push_back(member);
      }
    }
    find_differences(group, calls[key]);
    if (furthest != 0 || !group.messages.empty()) result.push_back(std::move(group));
  }
  return result;
}

std::string summary(const GroupProgress& group) {
  if (!group.differs.empty()) return "calls differ: " + group.differs.front();
  if (group.behind.empty()) return "";
  const auto ahead = std::max_element(group.ranks.begin(), group.ranks.end(),
                                      [](const auto& a, const auto& b) { return a.posted < b.posted; });
  return fmt::format("rank {} has not come to #{} {}, where rank {} is", fmt::join(group.behind, ", "), ahead->posted,
                     ahead->call, ahead->rank);
}

std::string to_text(const GroupProgress& group) {
  std::string text = fmt::format("axis {}, ranks {}{}\n", group.axis, fmt::join(group.members, ", "),
                                 group.generation == 0 ? "" : fmt::format(", generation {}", group.generation));
  uint64_t furthest = 0;
  std::string call;
  for (const RankProgress& rank : group.ranks) {
    text += fmt::format("  rank {:<4} posted #{}{}, done up to #{}\n", rank.rank, rank.posted,
                        rank.call.empty() ? "" : " " + rank.call, rank.done);
    if (rank.posted <= furthest) continue;
    furthest = rank.posted;
    call = rank.call;
  }
  if (!group.without_record.empty()) {
    text += fmt::format("  no record of rank {}\n", fmt::join(group.without_record, ", "));
  }
  for (const std::string& difference : group.differs) text += fmt::format("  calls differ: {}\n", difference);
  for (const std::string& message : group.messages) text += fmt::format("  message of {}\n", message);
  std::vector<int64_t> unfinished;
  for (const RankProgress& rank : group.ranks) {
    if (rank.done < furthest) unfinished.push_back(rank.rank);
  }
  if (!group.behind.empty()) {
    text += fmt::format("  behind: {}\n", summary(group));
  } else if (!unfinished.empty()) {
    text += fmt::format("  all have come to #{} {}; not complete for rank {}\n", furthest, call,
                        fmt::join(unfinished, ", "));
  }
  return text;
}

}  // namespace trireme::comm
