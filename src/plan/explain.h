// How a number of a plan comes about: its formula, the formula with the job's numbers in it, and where it is from.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/job.h"

namespace trireme::plan {

/// An operation, or another part of the sum.
struct Part {
  std::string name;
  std::string size;    ///< "[8192, 16384] x [16384, 2304]"
  double forward = 0;  ///< seconds of one micro-batch through one block
  double backward = 0;
};

struct Explanation {
  std::string name;
  enum class Unit { seconds, bytes, share };
  Unit unit = Unit::seconds;  ///< of a step
  double value = 0;
  std::string formula;
  std::vector<std::pair<std::string, std::string>> numbers;  ///< of the formula's symbols, in words
  std::vector<Part> parts;                                   ///< the largest first
  std::string source;
};

/// Terms of the step's time, purposes of memory ("master-weights"), mfu and hfu: what can be explained of this plan.
std::vector<std::string> explained(const Job& job, const Layout& layout);
/// Throws InputError for a name that is none of these; a blank is as good as a hyphen.
Explanation explain(const Job& job, const Layout& layout, std::string_view name);

}  // namespace trireme::plan
