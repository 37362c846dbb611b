// What failures cost a run that saves checkpoints: the best interval, and the share of time that is not lost.
//
// tau is work between two checkpoints, d what a checkpoint holds training up, R from a failure until training goes on,
// M the mean time between failures of the whole machine; all in seconds. Failures are exponential in the closed forms.
#pragma once

#include <cstdint>

namespace trireme::plan {

struct Failures {
  double mean_time_between_s = 0;  ///< M; 0: none
  double restart_s = 600;          ///< R
  double checkpoint_s = 30;        ///< d
  double shape = 1;                ///< of a Weibull lifetime of the machine; 1: exponential. For simulate_goodput
};

/// M of `gpus` accelerators, each with `gpu_mtbf_hours`.
double machine_mtbf_s(double gpu_mtbf_hours, int64_t gpus);

/// Young, 1974: sqrt(2 d M).
double young_interval_s(const Failures& failures);
/// Daly, 2006 (doi:10.1016/j.future.2004.11.016), equation 37: sqrt(2dM) (1 + sqrt(d/2M)/3 + (d/2M)/9) - d for d < 2M,
/// else M.
double daly_interval_s(const Failures& failures);

/// Share of wall-clock time that is work: tau / (M e^(R/M) (e^((tau+d)/M) - 1)), Daly's complete model, in which
/// failures also strike restarts. 1 - d / (tau + d) without failures.
double goodput(const Failures& failures, double interval_s);
/// First order (Kokolis et al., arXiv:2410.21680, section 4): (1 - (R + tau/2) / M) / (1 + d / tau), never below 0.
double goodput_first_order(const Failures& failures, double interval_s);

/// The same by discrete events over `failures_to_see` failures: lifetimes are drawn (Weibull of failures.shape with the
/// mean M), work since the last checkpoint is lost, and restarts may fail. The same seed gives the same number.
double simulate_goodput(const Failures& failures, double interval_s, int64_t failures_to_see, uint64_t seed);

/// Machines to hold ready so that with `confidence` the number that fails within `repair_hours` is not above them: a
/// quantile of the Poisson law.
int64_t spares(int64_t machines, double machine_mtbf_hours, double repair_hours, double confidence);

}  // namespace trireme::plan
