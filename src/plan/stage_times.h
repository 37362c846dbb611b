// Private to plan: seconds of the passes of every stage by term, and of what follows them. step_time() adds them up,
// timeline() draws them.
#pragma once

#include <vector>

#include "describe/pipeline_schedule.h"
#include "plan/operations.h"
#include "plan/stage_parameters.h"
#include "plan/step_time.h"

namespace trireme::plan {

/// One micro-batch through a piece of the model on one rank.
struct Passes {
  Terms forward{};
  Terms backward{};
  double first_gather = 0;  ///< seconds by which the step's first forward is longer
};

struct Stages {
  std::vector<Passes> passes;     ///< [stages]
  describe::PipelineTimes times;  ///< the same, summed
};

constexpr size_t index(Term term) { return static_cast<size_t>(term); }
inline double& at(Terms& terms, Term term) { return terms[index(term)]; }
inline void add(Terms& to, const Terms& terms, double factor = 1) {
  for (size_t i = 0; i < kTerms; ++i) to[i] += factor * terms[i];
}
double sum(const Terms& terms);

Stages make_stages(const Job& job, const Layout& layout, const StepOptions& options);
/// What the stages of one rank take for one micro-batch.
Terms rank_terms(const Layout& layout, const Stages& stages, int64_t rank);
/// Each operation as if it were alone: forward and backward of one micro-batch.
std::vector<Passes> passes_of_each(const Job& job, const Layout& layout, const std::vector<Op>& operations);

/// After the last backward pass, seconds.
struct Ending {
  double exchange = 0;  ///< of gradients, as far as backward does not hide it
  double update = 0;
};
Ending make_ending(const Job& job, const Layout& layout, const StepOptions& options, const Stages& stages);

}  // namespace trireme::plan
