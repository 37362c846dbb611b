#include "train/replica_check.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "comm/group.h"
#include "ops/dispatch.h"

namespace trireme::train {
namespace {

uint64_t hash_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  const at::Tensor host = tensor.to(at::kCPU).contiguous();
  return hash64({static_cast<const char*>(host.const_data_ptr()), host.nbytes()});
}

// What ranks hold alike, in one order on all of them.
struct Part {
  const char* what;
  const nn::Parameter* parameter;
  at::Tensor tensor;
};

std::vector<Part> parts_of(const Session& session) {
  std::vector<Part> parts;
  for (const nn::Parameter* parameter : session.model->parameters()) {
    parts.push_back({"weights", parameter, parameter->master()});
    if (parameter->copy().defined())
      parts.push_back({"copy of the weights that computes", parameter, parameter->copy()});
  }
  const optim::Adamw& optimizer = *session.optimizer;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    parts.push_back({"first moment", optimizer.parameters()[i], optimizer.moments()[i].exp_avg});
    parts.push_back({"second moment", optimizer.parameters()[i], optimizer.moments()[i].exp_avg_sq});
  }
  for (size_t i = 0; session.ema && i < session.ema->parameters().size(); ++i)
    parts.push_back({"moving average", session.ema->parameters()[i], session.ema->averages()[i]});
  return parts;
}

std::vector<int64_t> hashes_of(const std::vector<Part>& parts) {
  std::vector<int64_t> hashes(parts.size());
  ops::parallel_rows(static_cast<int64_t>(parts.size()), 1 << 20, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      hashes[i] = static_cast<int64_t>(hash_of(parts[i].tensor));
  });
  return hashes;
}

// The ranks whose hash is not that of most; all of them where two hashes are equally frequent.
std::vector<int64_t> odd_ones(const std::vector<int64_t>& hashes, const std::vector<int64_t>& ranks) {
  std::map<int64_t, std::vector<int64_t>> by_hash;
  for (size_t r = 0; r < hashes.size(); ++r) by_hash[hashes[r]].push_back(ranks[r]);
  const auto fewer = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
  const auto most = std::max_element(by_hash.begin(), by_hash.end(), fewer);
  const auto as_many = std::count_if(by_hash.begin(), by_hash.end(),
                                     [&](const auto& entry) { return entry.second.size() == most->second.size(); });
  std::vector<int64_t> odd;
  for (const auto& [hash, members] : by_hash)
    if (as_many > 1 || hash != most->first) odd.insert(odd.end(), members.begin(), members.end());
  std::sort(odd.begin(), odd.end());
  return odd;
}

// Of the ranks that this one compares itself with.
std::string first_difference(const Session& session) {
  comm::Communicator& replicas = session.data_parallel->replicas();
  if (replicas.size() == 1) return {};
  const std::vector<Part> parts = parts_of(session);
  std::vector<int64_t> mine = hashes_of(parts);
  session.optimizer->settle();
  const auto count = static_cast<int64_t>(mine.size());
  const at::Tensor all = at::empty({replicas.size(), count}, at::kLong);
  replicas.all_gather_into(all, at::from_blob(mine.data(), {count}, at::kLong));
  const auto* hash = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int64_t> each;
    for (int64_t r = 0; r < replicas.size(); ++r) each.push_back(hash[r * count + i]);
    if (std::all_of(each.begin(), each.end(), [&](int64_t h) { return h == each[0]; })) continue;
    const std::vector<int64_t>& ranks = replicas.group()->members();
    const std::vector<int64_t> odd = odd_ones(each, ranks);
    const Part& part = parts[static_cast<size_t>(i)];
    const bool plural = std::string_view(part.what) == "weights";
    return fmt::format("the {} of {} {} not the same on ranks {} after step {}: {} {} from the others", part.what,
                       part.parameter->name(), plural ? "are" : "is", fmt::join(ranks, ", "), session.progress.step,
                       odd.size() == 1 ? fmt::format("rank {}", odd[0]) : fmt::format("ranks {}", fmt::join(odd, ", ")),
                       odd.size() == ranks.size() ? "each differ"
                       : odd.size() == 1          ? "differs"
                                                  : "differ");
  }
  return {};
}

}  // namespace

std::string find_differing_replica(const Session& session) {
  const std::string mine = first_difference(session);
  if (!session.mesh->world().any(!mine.empty())) return {};
  for (const std::string& text : session.mesh->world().all_gather_strings(mine))
    if (!text.empty()) return text;
  return {};
}

}  // namespace trireme::train
