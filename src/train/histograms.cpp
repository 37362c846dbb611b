#include "train/histograms.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

namespace trireme::train {
namespace {

struct Source {
  std::string name;
  at::Tensor values;  ///< [elements], contiguous
  double scale;       ///< that is in them
};

observe::Histogram histogram_of(const at::Tensor& values) {
  const at::Tensor host = values.to(at::kCPU);
  const auto count = static_cast<size_t>(host.numel());
  if (host.scalar_type() == at::kDouble) return observe::histogram(std::span(host.const_data_ptr<double>(), count));
  return observe::histogram(std::span(host.const_data_ptr<float>(), count));
}

}  // namespace

std::vector<observe::NamedHistogram> histograms_of(const models::Model& model, double loss_scale) {
  const at::NoGradGuard no_grad;
  std::vector<Source> sources;
  for (const nn::Parameter* parameter : model.parameters()) {
    for (const nn::Fragment& fragment : parameter->fragments()) {
      const auto part = [&](const at::Tensor& tensor) {
        return tensor.view({-1}).narrow(0, fragment.local_offset, fragment.elements());
      };
      sources.push_back({"weights/" + fragment.logical->name, part(parameter->master()), 1});
      sources.push_back({"gradients/" + fragment.logical->name, part(parameter->gradient()), loss_scale});
    }
  }
  // One thread makes a whole histogram, so that its sums do not depend on how many there are.
  std::vector<observe::NamedHistogram> histograms(sources.size());
  at::parallel_for(0, static_cast<int64_t>(sources.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      histograms[i] = {sources[i].name,
                       histogram_of(sources[i].scale == 1 ? sources[i].values : sources[i].values / sources[i].scale)};
  });
  return histograms;
}

}  // namespace trireme::train
