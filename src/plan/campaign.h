// Tokens, FLOPs, days, money and energy of a whole run: one is given, the others follow.
#pragma once

#include <optional>
#include <string>

#include "plan/job.h"

namespace trireme::plan {

/// One of these is given.
struct Budget {
  std::optional<double> tokens = {};
  std::optional<double> flops = {};  ///< 6ND
  std::optional<double> days = {};   ///< of wall-clock time, lost time among them
};

struct Prices {
  double usd_per_gpu_hour = 0;   ///< 0: not known
  double watts = 0;              ///< of an accelerator at work; 0: not known
  double overhead = 1.3;         ///< power of the building / power of the accelerators: hosts, network, cooling
  double grams_co2_per_kwh = 0;  ///< of the grid; 0: not known
};

struct Campaign {
  double tokens = 0;
  double flops = 0;  ///< 6ND
  double steps = 0;
  double days = 0;  ///< wall-clock
  double gpu_hours = 0;
  double tokens_per_parameter = 0;
  double usd = 0;         ///< 0: not known
  double mwh = 0;         ///< 0: not known
  double tonnes_co2 = 0;  ///< 0: not known
};

/// `step_s`: seconds of a step; `goodput`: share of the time in which steps that count are made (reliability.h).
/// Throws InputError where not exactly one of the budget is given, or it is not above 0.
Campaign plan_campaign(const Job& job, double step_s, double goodput, const Budget& budget, const Prices& prices);

/// The loss that a law promises, and the model that its budget should buy.
struct ScalingLaw {
  double loss = 0;             ///< nats a token, of this model on these tokens
  double best_parameters = 0;  ///< for the same FLOPs (6ND)
  double best_tokens = 0;
};
/// L = E + A / N^alpha + B / D^beta with E = 1.69, A = 406.4, B = 410.7, alpha = 0.34, beta = 0.28 (Hoffmann et al.,
/// arXiv:2203.15556, equation 10). Its data, tokenizer and a dense model are assumed; another text has another E.
ScalingLaw chinchilla(double parameters, double tokens);

}  // namespace trireme::plan
