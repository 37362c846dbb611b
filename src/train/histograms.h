// How weights and gradients of a model spread.
#pragma once

#include <vector>

#include "observe/histogram.h"
#include "train/session.h"

namespace trireme::train {

/// `weights/NAME` and `gradients/NAME` of each logical parameter: the master weights, and the gradients as the last
/// backward pass and its reduction left them, which is before clipping. Collective; the first rank gets them, others an
/// empty list.
std::vector<observe::NamedHistogram> histograms_of(const Session& session, double loss_scale);

}  // namespace trireme::train
