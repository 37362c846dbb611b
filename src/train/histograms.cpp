#include "train/histograms.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>

namespace trireme::train {
namespace {

struct Source {
  std::string name;
  at::Tensor values;  ///< [elements], contiguous
  double scale;       ///< that is in them
};

observe::Histogram histogram_of(const at::Tensor& values) {
  const at::Tensor host =
      values.to(at::kCPU, values.scalar_type() == at::kBFloat16 ? at::kFloat : values.scalar_type());
  const auto count = static_cast<size_t>(host.numel());
  if (host.scalar_type() == at::kDouble) return observe::histogram(std::span(host.const_data_ptr<double>(), count));
  return observe::histogram(std::span(host.const_data_ptr<float>(), count));
}

}  // namespace

std::vector<observe::NamedHistogram> histograms_of(const Session& session, double loss_scale) {
  const at::NoGradGuard no_grad;
  std::vector<observe::NamedHistogram> all;
  if (session.data_parallel->replicas().rank() != 0) return all;  // the ranks of the first copy have all of it
  for (const nn::Parameter* parameter : session.model->parameters()) {
    const at::Tensor weights = session.data_parallel->gather(*parameter, parameter->master()),
                     gradients = parameter->trainable()
                                     ? session.data_parallel->gather(*parameter, parameter->gradient())
                                     : at::Tensor();
    if (!session.first_rank()) continue;
    std::vector<Source> sources;
    int64_t first = 0;  // row
    for (const nn::LogicalTensor& logical : parameter->parts()) {
      const auto part = [&](const at::Tensor& tensor) {
        return tensor.narrow(0, first, logical.shape[0]).reshape({-1});
      };
      sources.push_back({"weights/" + logical.name, part(weights), 1});
      if (gradients.defined()) sources.push_back({"gradients/" + logical.name, part(gradients), loss_scale});
      first += logical.shape[0];
    }
    // One thread makes a whole histogram, so that its sums do not depend on how many there are.
    std::vector<observe::NamedHistogram> histograms(sources.size());
    at::parallel_for(0, static_cast<int64_t>(sources.size()), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        histograms[i] = {sources[i].name, histogram_of(sources[i].scale == 1 ? sources[i].values
                                                                             : sources[i].values / sources[i].scale)};
    });
    std::ranges::move(histograms, std::back_inserter(all));
  }
  return all;
}

}  // namespace trireme::train
