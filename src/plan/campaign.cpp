#include "plan/campaign.h"

#include <cmath>

#include "base/error.h"
#include "plan/flops.h"

namespace trireme::plan {

Campaign plan_campaign(const Job& job, double step_s, double goodput, const Budget& budget, const Prices& prices) {
  const int given = (budget.tokens ? 1 : 0) + (budget.flops ? 1 : 0) + (budget.days ? 1 : 0);
  if (given != 1) throw_input("a budget is one of tokens, FLOPs and days, and {} are given", given);
  const double value = budget.tokens ? *budget.tokens : budget.flops ? *budget.flops : *budget.days;
  if (!(value > 0)) throw_input("a budget of {}: it has to be above 0", value);
  const auto step_tokens = static_cast<double>(job.tokens_per_step());
  const double token_flops = flops_per_token(job.shape, job.seq_len, FlopConvention::six_n);
  constexpr double kDay = 86400;
  Campaign run;
  run.tokens = budget.tokens  ? *budget.tokens
               : budget.flops ? *budget.flops / token_flops
                              : *budget.days * kDay * goodput / step_s * step_tokens;
  run.flops = run.tokens * token_flops;
  run.steps = std::ceil(run.tokens / step_tokens);
  run.days = run.tokens / step_tokens * step_s / goodput / kDay;
  run.gpu_hours = run.days * 24 * static_cast<double>(job.gpus);
  run.tokens_per_parameter = run.tokens / static_cast<double>(describe::count_work_parameters(job.shape).active);
  run.usd = run.gpu_hours * prices.usd_per_gpu_hour;
  run.mwh = run.gpu_hours * prices.watts * prices.overhead / 1e6;
  run.tonnes_co2 = run.mwh * prices.grams_co2_per_kwh / 1e3;
  return run;
}

ScalingLaw chinchilla(double parameters, double tokens) {
  constexpr double kE = 1.69, kA = 406.4, kB = 410.7, kAlpha = 0.34, kBeta = 0.28;
  ScalingLaw law;
  law.loss = kE + kA / std::pow(parameters, kAlpha) + kB / std::pow(tokens, kBeta);
  // The minimum along 6 N D = C (appendix D.3): N = G (C/6)^a, D = (C/6)^b / G.
  const double budget = parameters * tokens;
  const double g = std::pow(kAlpha * kA / (kBeta * kB), 1 / (kAlpha + kBeta));
  law.best_parameters = g * std::pow(budget, kBeta / (kAlpha + kBeta));
  law.best_tokens = budget / law.best_parameters;
  return law;
}

}  // namespace trireme::plan
