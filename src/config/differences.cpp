#include <fmt/format.h>

#include "config/option.h"

namespace trireme::config {
namespace {

/// Options that follow from ones that may change: what keeps them as they were.
std::string hint_for(const Option& option, const std::string& was) {
  for (const char* key : {"lr_schedule.steps", "lr_schedule.warmup_steps", "lr_schedule.decay_steps"}) {
    if (option.key == key) return fmt::format("it follows train.steps unless it is given; {} = {} keeps it", key, was);
  }
  if (option.key == "train.global_batch_size") {
    return fmt::format("-1 follows the number of workers; train.global_batch_size = {} keeps it", was);
  }
  return "";
}

}  // namespace

std::vector<Difference> differences(const Config& was, const Config& is) {
  std::vector<Difference> found;
  for (const Option& option : options()) {
    const Value before = option.binding.get(was), after = option.binding.get(is);
    if (before == after) continue;
    found.push_back(
        {option.key, to_toml(before), to_toml(after), option.may_change, hint_for(option, to_toml(before))});
  }
  return found;
}

}  // namespace trireme::config
