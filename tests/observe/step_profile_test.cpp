// From events to the table. Catches: time counted twice or lost, an operator of ATen's that is taken from the operation
// that called it, events of other threads or outside of a step in the sum, a trace that does not parse.
#include "observe/step_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace trireme::observe {
namespace {

using profile::Event;
using profile::Kind;
using profile::Phase;
using testing::HasSubstr;

Event event(Kind kind, Phase phase, std::string name, int64_t begin, int64_t end, std::string of = "") {
  Event made;
  made.kind = kind;
  made.phase = phase;
  made.name = std::move(name);
  made.of = std::move(of);
  made.begin_ns = begin;
  made.end_ns = end;
  return made;
}

// A step of 1000 ns, in the order in which its events ended.
std::vector<Event> one_step() {
  std::vector<Event> events = {
      event(Kind::aten, Phase::other, "aten::before", -50, -10),
      event(Kind::aten, Phase::forward, "aten::mm", 110, 190),
      event(Kind::operation, Phase::forward, "linear", 100, 200, "blocks.0.attention.output.weight"),
      event(Kind::operation, Phase::forward, "linear", 200, 250, "blocks.1.attention.output.weight"),
      event(Kind::aten, Phase::forward, "aten::copy_", 265, 285),
      event(Kind::aten, Phase::forward, "aten::to", 260, 290),
      event(Kind::section, Phase::forward, "forward", 90, 300),
      event(Kind::operation, Phase::communication, "collective, post", 420, 450),
      event(Kind::operation, Phase::backward, "linear, weight gradient", 410, 500, "blocks.0.attention.output.weight"),
      event(Kind::node, Phase::backward, "Linear", 400, 520),
      event(Kind::section, Phase::backward, "backward", 390, 600),
      event(Kind::step, Phase::other, "step", 0, 1000),
  };
  for (Event& made : events)
    if (made.name == "linear") made.flops = 1000, made.bytes = 10;
  events.back().shape[0] = 4;
  return events;
}

const ProfileRow& row_of(const StepProfile& profile, const std::string& name) {
  for (const ProfileRow& row : profile.rows)
    if (row.name == name) return row;
  throw InputError("no row " + name);
}

TEST(StepProfile, SelfTimesAndOtherAddUpToTheStep) {
  StepProfile profile;
  add_events(profile, {{1, "step", one_step()}, {2, "loader", {event(Kind::section, Phase::data, "read", 0, 900)}}});
  EXPECT_THAT(profile.steps, testing::ElementsAre(4));
  EXPECT_EQ(profile.total_ns(), 1000);
  EXPECT_EQ(row_of(profile, "linear").self_ns, 150);  // with aten::mm, which is its own
  EXPECT_EQ(row_of(profile, "linear").calls, 2);
  EXPECT_EQ(row_of(profile, "linear").of, "attention.output");
  EXPECT_EQ(row_of(profile, "linear").flops, 2000);
  EXPECT_EQ(row_of(profile, "aten::to").self_ns, 30);  // with aten::copy_, which it calls
  EXPECT_EQ(row_of(profile, "collective, post").self_ns, 30);
  EXPECT_EQ(row_of(profile, "linear, weight gradient").self_ns, 60);
  EXPECT_EQ(profile.other_ns.at(Phase::forward), 30);
  EXPECT_EQ(profile.other_ns.at(Phase::backward), 120);
  EXPECT_EQ(profile.other_ns.at(Phase::other), 580);
  int64_t sum = 0;
  for (const ProfileRow& row : profile.rows) sum += row.self_ns;
  for (const auto& [phase, ns] : profile.other_ns) sum += ns;
  EXPECT_EQ(sum, 1000);
  EXPECT_EQ(profile.rows.size(), 4U);  // nothing of before the step, nothing of the other thread
  EXPECT_EQ(profile.rows.front().name, "linear");
}

TEST(StepProfile, EventsOfOneInstantNest) {
  std::vector<Event> events = {
      event(Kind::operation, Phase::forward, "inner", 0, 10), event(Kind::section, Phase::forward, "outer", 0, 10),
      event(Kind::operation, Phase::forward, "empty", 10, 10), event(Kind::step, Phase::other, "step", 0, 10)};
  StepProfile profile;
  add_events(profile, {{1, "step", events}});
  EXPECT_EQ(row_of(profile, "inner").self_ns, 10);
  EXPECT_EQ(profile.other_ns.at(Phase::forward), 0);
}

TEST(StepProfile, OverlapIsRefused) {
  std::vector<Event> events = {event(Kind::operation, Phase::forward, "first", 10, 60),
                               event(Kind::operation, Phase::forward, "second", 50, 90),
                               event(Kind::step, Phase::other, "step", 0, 100)};
  StepProfile profile;
  EXPECT_THROW(add_events(profile, {{1, "step", events}}), InternalError);
}

TEST(StepProfile, RolesAreWhatBlocksShare) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"blocks.3.attention.q+k+v.weight", "attention.q+k+v"},
      {"blocks.11.feed_forward.up.bias", "feed_forward.up"},
      {"embed.weight", "embed"},
      {"weight", "weight"},
      {"a.7.b.2.c", "c"},
      {"", ""},
  };
  for (const auto& [name, role] : rows) EXPECT_EQ(role_of(name), role) << name;
}

TEST(StepProfile, TableEndsWithTheStep) {
  StepProfile profile;
  add_events(profile, {{1, "step", one_step()}});
  profile.model_flops = 2000;
  profile.matmul_flops_per_second = 2e10;
  const std::string text = to_text(profile);
  EXPECT_THAT(text, HasSubstr("Profile of step 4 on rank 0 of 1"));
  EXPECT_THAT(text, HasSubstr("2.00kFLOP a step (100.0% of the model's), 15.0% of the time"));
  EXPECT_THAT(text, HasSubstr("linear attention.output"));
  EXPECT_THAT(text, testing::ContainsRegex("a step +0\\.00 +100\\.0%\n"));
}

TEST(StepProfile, TraceHasEveryEventAndIsJson) {
  StepProfile profile;
  profile.rank = 3;
  std::vector<Event> events = one_step();
  events[0].name = "bytes \xff that are no text";
  add_events(profile, {{17, "step", events}});
  const auto trace = nlohmann::json::parse(to_trace(profile, {{17, "step", events}}));
  size_t complete = 0;
  for (const auto& told : trace.at("traceEvents")) {
    EXPECT_EQ(told.at("pid"), 3);
    if (told.at("ph") != "X") continue;
    EXPECT_EQ(told.at("tid"), 17);
    EXPECT_EQ(told.at("ts").get<double>(), static_cast<double>(events[complete].begin_ns) / 1000);
    EXPECT_GE(told.at("dur").get<double>(), 0);
    ++complete;
  }
  EXPECT_EQ(complete, events.size());
}

TEST(StepProfile, JsonHasTheNumbersOfTheTable) {
  StepProfile profile;
  add_events(profile, {{1, "step", one_step()}});
  const auto json = nlohmann::json::parse(to_json(profile));
  int64_t sum = 0;
  for (const auto& row : json.at("operations")) sum += row.at("self_ns").get<int64_t>();
  for (const auto& [phase, ns] : json.at("other_ns").items()) sum += ns.get<int64_t>();
  EXPECT_EQ(sum, json.at("total_ns").get<int64_t>());
}

}  // namespace
}  // namespace trireme::observe
