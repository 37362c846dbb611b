#include "plan/timeline.h"

#include "plan/stage_times.h"

namespace trireme::plan {

std::string_view name_of(Slice::Kind kind) {
  switch (kind) {
    case Slice::Kind::forward:
      return "forward";
    case Slice::Kind::backward:
      return "backward";
    case Slice::Kind::exchange:
      return "gradients";
    case Slice::Kind::update:
      return "optimizer";
  }
  return "";
}

std::vector<std::vector<Slice>> timeline(const Job& job, const Layout& layout) {
  const Stages stages = make_stages(job, layout, {});
  const Ending ending = make_ending(job, layout, {}, stages);
  const auto table = describe::make_pipeline_table(layout.schedule, layout.pipeline, layout.virtual_stages,
                                                   micro_batches(job, layout));
  const describe::PipelineResult played = describe::simulate(table, stages.times, /*with_ends=*/true);
  // step_time() adds the first gathers of all stages to the step, whichever rank has them.
  double first_gather = 0;
  for (const Passes& stage : stages.passes) first_gather += stage.first_gather;

  std::vector<std::vector<Slice>> ranks;
  for (size_t rank = 0; rank < table.actions.size(); ++rank) {
    std::vector<Slice> slices;
    for (size_t i = 0; i < table.actions[rank].size(); ++i) {
      const describe::PipelineAction& action = table.actions[rank][i];
      const Passes& stage = stages.passes[static_cast<size_t>(action.chunk * layout.pipeline) + rank];
      Slice slice;
      slice.kind = action.forward ? Slice::Kind::forward : Slice::Kind::backward;
      slice.micro_batch = action.micro_batch;
      slice.chunk = action.chunk;
      slice.terms = action.forward ? stage.forward : stage.backward;
      slice.seconds = sum(slice.terms);
      slice.begin = first_gather + played.ends[rank][i] - slice.seconds;
      if (i == 0 && first_gather > 0) {
        slice.begin = 0;
        slice.seconds += first_gather;
        at(slice.terms, Term::gather) += first_gather;
      }
      slices.push_back(slice);
    }
    double now = first_gather + played.seconds;
    for (const auto& [kind, seconds] :
         {std::pair(Slice::Kind::exchange, ending.exchange), {Slice::Kind::update, ending.update}}) {
      if (seconds > 0) slices.push_back({.kind = kind, .begin = now, .seconds = seconds});
      now += seconds;
    }
    ranks.push_back(std::move(slices));
  }
  return ranks;
}

}  // namespace trireme::plan
