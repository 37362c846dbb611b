#include "plan/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "plan/step_time.h"

namespace trireme::plan {
namespace {

constexpr size_t kFitted = 4;
constexpr double kPull = 0.03;              // error that a constant e times the data sheet's has to save
using Point = std::array<double, kFitted>;  // logarithms

struct Fitted {
  double Constants::*member;
  double least, most;
};
constexpr std::array<Fitted, kFitted> kConstants = {{{&Constants::matmul_share, 0.2, 1},
                                                     {&Constants::memory_share, 0.2, 1},
                                                     {&Constants::link_share, 0.05, 1},
                                                     {&Constants::kernel_gap_us, 0.2, 50}}};

Constants at(const Point& point, Constants constants) {
  for (size_t i = 0; i < kFitted; ++i)
    constants.*kConstants[i].member = std::clamp(std::exp(point[i]), kConstants[i].least, kConstants[i].most);
  return constants;
}

double mean_error(std::span<const PublishedRun> runs, const Constants& constants) {
  return summarize(score(runs, constants)).mean;
}

template <typename Cost>
Point least(const Point& start, const Cost& cost) {
  struct Corner {
    Point point;
    double cost;
  };
  std::vector<Corner> simplex = {{start, cost(start)}};
  for (size_t i = 0; i < kFitted; ++i) {
    Point point = start;
    point[i] -= 0.2;
    simplex.push_back({point, cost(point)});
  }
  const auto by_cost = [](const Corner& a, const Corner& b) { return a.cost < b.cost; };
  constexpr int kRounds = 120;
  for (int round = 0; round < kRounds; ++round) {
    std::ranges::stable_sort(simplex, by_cost);
    if (simplex.back().cost - simplex.front().cost < 1e-6) break;
    Point centre{};
    for (size_t c = 0; c < kFitted; ++c) {
      for (size_t i = 0; i < kFitted; ++i) centre[i] += simplex[c].point[i] / kFitted;
    }
    const auto along = [&](double factor) {
      Point point;
      for (size_t i = 0; i < kFitted; ++i) point[i] = centre[i] + factor * (simplex.back().point[i] - centre[i]);
      return Corner{point, cost(point)};
    };
    const Corner reflected = along(-1);
    if (reflected.cost < simplex.front().cost) {
      const Corner further = along(-2);
      simplex.back() = further.cost < reflected.cost ? further : reflected;
    } else if (reflected.cost < simplex[kFitted - 1].cost) {
      simplex.back() = reflected;
    } else if (const Corner nearer = along(0.5); nearer.cost < simplex.back().cost) {
      simplex.back() = nearer;
    } else {
      for (size_t c = 1; c < simplex.size(); ++c) {
        for (size_t i = 0; i < kFitted; ++i) simplex[c].point[i] = (simplex[c].point[i] + simplex.front().point[i]) / 2;
        simplex[c].cost = cost(simplex[c].point);
      }
    }
  }
  return std::ranges::min_element(simplex, by_cost)->point;
}

}  // namespace

Calibration calibrate(std::span<const PublishedRun> runs, const Constants& start) {
  Calibration result;
  result.constants = start;
  Point point{};
  for (const PublishedRun& run : runs) {
    if (!run.is_timed()) continue;
    if (result.rows++ > 0) continue;
    Job job = run.job;
    job.constants = start;
    result.constants.matmul_share = matmul_rate(job) / peak_rate(job);
  }
  if (result.rows == 0) return result;
  for (size_t i = 0; i < kFitted; ++i) point[i] = std::log(result.constants.*kConstants[i].member);
  // Few rows do not tell the constants apart: what they leave open stays near the data sheet.
  const auto cost = [&](const Point& p) {
    double away = 0;
    for (size_t i = 0; i < kFitted; ++i) away += (p[i] - point[i]) * (p[i] - point[i]);
    return mean_error(runs, at(p, start)) + kPull * away;
  };
  result.constants = at(least(point, cost), start);
  result.mean_error = mean_error(runs, result.constants);
  return result;
}

std::vector<ScoredRun> score_leaving_model_out(std::span<const PublishedRun> runs, const Constants& start) {
  std::set<std::tuple<std::string, std::string, Precision, std::string>> done;
  std::vector<ScoredRun> scored;
  for (const PublishedRun& left_out : runs) {
    if (!left_out.is_timed()) continue;
    const auto same_stack = [&](const PublishedRun& run) {
      return run.set == left_out.set && run.job.accelerator.name == left_out.job.accelerator.name &&
             run.job.precision == left_out.job.precision;
    };
    if (!done.insert({left_out.set, left_out.job.accelerator.name, left_out.job.precision, left_out.model}).second)
      continue;
    std::vector<PublishedRun> others;
    for (const PublishedRun& run : runs) {
      if (same_stack(run) && run.model != left_out.model) others.push_back(run);
    }
    const Constants constants = calibrate(others, start).constants;
    for (const PublishedRun& run : runs) {
      if (!same_stack(run) || run.model != left_out.model) continue;
      for (const ScoredRun& row : score({&run, 1}, constants)) scored.push_back(row);
    }
  }
  return scored;
}

}  // namespace trireme::plan
