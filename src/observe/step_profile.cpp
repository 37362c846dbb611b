#include "observe/step_profile.h"

#include <algorithm>
#include <cctype>
#include <compare>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/error.h"

namespace trireme::observe {
namespace {

using profile::Event;
using profile::Kind;

// Identity of a row.
struct Key {
  std::string name, of;
  profile::Phase phase;
  profile::Shape shape;
  auto operator<=>(const Key&) const = default;
};

Key key_of(const Event& event) {
  return {event.name, role_of(event.of), event.phase,
          event.kind == Kind::aten ? profile::Shape{-1, -1, -1} : event.shape};
}

// Events in the order of their begin, those that last longer first: each after the ones around it.
std::vector<const Event*> outer_first(const std::vector<Event>& events) {
  std::vector<const Event*> order;
  // They ended in this order; of two that began and ended at the same instant, the outer one ended later.
  for (auto event = events.rbegin(); event != events.rend(); ++event) order.push_back(&*event);
  std::stable_sort(order.begin(), order.end(), [](const Event* a, const Event* b) {
    return std::tuple(a->begin_ns, -a->end_ns) < std::tuple(b->begin_ns, -b->end_ns);
  });
  return order;
}

class Tally {
 public:
  explicit Tally(StepProfile& profile) : profile_(profile) {}

  void add(const std::vector<Event>& events) {
    for (const Event* event : outer_first(events)) {
      close_before(event->begin_ns);
      open(*event);
    }
    close_before(std::numeric_limits<int64_t>::max());
  }

  void finish() {
    for (auto& [key, row] : rows_) profile_.rows.push_back(std::move(row));
    std::ranges::stable_sort(profile_.rows, std::ranges::greater(), &ProfileRow::self_ns);
  }

 private:
  struct Open {
    const Event* event;
    ProfileRow* row;  // null: other
    int64_t self_ns;
    bool in_step;
  };

  void open(const Event& event) {
    const Open* around = open_.empty() ? nullptr : &open_.back();
    TRIREME_CHECK(around == nullptr || event.end_ns <= around->event->end_ns, "{} ends after {}, which is around it",
                  event.name, around->event->name);
    const int64_t duration = event.end_ns - event.begin_ns;
    const bool in_step = event.kind == Kind::step || (around != nullptr && around->in_step);
    if (around != nullptr) open_.back().self_ns -= duration;
    if (event.kind == Kind::step) {
      profile_.steps.push_back(event.shape[0]);
      profile_.step_ns.push_back(duration);
    }
    // What an operation calls is part of it, but for another operation.
    ProfileRow* row = around != nullptr && event.kind != Kind::operation ? around->row : nullptr;
    if (in_step && (event.kind == Kind::operation || (event.kind == Kind::aten && row == nullptr))) {
      const Key key = key_of(event);
      row = &rows_[key];
      row->name = key.name;
      row->of = key.of;
      row->phase = key.phase;
      row->shape = key.shape;
      row->calls += 1;
      row->flops += event.flops;
      row->bytes += event.bytes;
    } else if (row != nullptr && event.kind == Kind::aten && row->name.starts_with("aten::")) {
      row->flops += event.flops;  // of the product that aten::matmul comes down to
    }
    open_.push_back({&event, row, duration, in_step});
  }

  void close_before(int64_t now) {
    while (!open_.empty() && open_.back().event->end_ns <= now) {
      const Open done = open_.back();
      open_.pop_back();
      if (!done.in_step) continue;
      if (done.row != nullptr)
        done.row->self_ns += done.self_ns;
      else
        profile_.other_ns[done.event->phase] += done.self_ns;
    }
  }

  StepProfile& profile_;
  std::map<Key, ProfileRow> rows_;
  std::vector<Open> open_;
};

bool steps_in(const profile::Thread& thread) {
  return std::ranges::any_of(thread.events, [](const Event& event) { return event.kind == Kind::step; });
}

}  // namespace

int64_t StepProfile::total_ns() const { return std::accumulate(step_ns.begin(), step_ns.end(), int64_t{0}); }

double StepProfile::flops() const {
  return std::accumulate(rows.begin(), rows.end(), 0.0,
                         [](double sum, const ProfileRow& row) { return sum + row.flops; });
}

std::string role_of(std::string_view name) {
  std::string role;
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    begin = end + 1;
    const bool number = std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; });
    if (number) {
      role.clear();  // blocks.3: any of them
      continue;
    }
    const bool last = begin > name.size();
    if (last && (part == "weight" || part == "bias") && !role.empty()) continue;
    if (!role.empty()) role += '.';
    role += part;
  }
  return role;
}

void add_events(StepProfile& profile, const std::vector<profile::Thread>& threads) {
  Tally tally(profile);
  for (const profile::Thread& thread : threads)
    if (steps_in(thread)) tally.add(thread.events);
  tally.finish();
}

}  // namespace trireme::observe
