// How weights and gradients of a model spread.
#pragma once

#include <vector>

#include "models/model.h"
#include "observe/histogram.h"

namespace trireme::train {

/// `weights/NAME` and `gradients/NAME` of each logical parameter: the master weights, and the gradients as the last
/// backward pass and its reduction left them, which is before clipping. Only what this rank holds.
std::vector<observe::NamedHistogram> histograms_of(const models::Model& model, double loss_scale);

}  // namespace trireme::train
