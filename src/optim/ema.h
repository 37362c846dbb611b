// An exponential moving average of the master weights (Polyak and Juditsky, 1992), which generalises as if the learning
// rate had decayed.
#pragma once

#include <vector>

#include "nn/parameter.h"

namespace trireme::optim {

class Ema {
 public:
  /// Of all parameters, in the compute type. `decay` in (0, 1).
  Ema(std::vector<nn::Parameter*> parameters, double decay);

  /// The weights as they are: what the average is before the first update.
  void start();
  /// After update number `updates` (from 1): the first one copies the weights, the others move the average by 1 - decay
  /// of the way (torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn).
  void update(int64_t updates);

  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  /// Of parameter `index` of parameters(), in its shape.
  const std::vector<at::Tensor>& averages() const { return averages_; }

 private:
  std::vector<nn::Parameter*> parameters_;
  std::vector<at::Tensor> averages_;
  double decay_;
};

}  // namespace trireme::optim
