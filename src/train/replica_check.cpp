#include "train/replica_check.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
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

// What ranks hold of each parameter, in the order of the hashes.
constexpr const char* kParts[] = {"weights", "copy of the weights that computes", "first moment", "second moment"};
constexpr size_t kPartCount = std::size(kParts);

std::vector<int64_t> hashes_of(const Session& session) {
  const std::vector<nn::Parameter*>& parameters = session.optimizer->parameters();
  std::vector<int64_t> hashes(parameters.size() * kPartCount);
  ops::parallel_rows(static_cast<int64_t>(parameters.size()), 1 << 20, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const auto& moments = session.optimizer->moments()[i];
      const at::Tensor parts[] = {parameters[i]->master(), parameters[i]->copy(), moments.exp_avg, moments.exp_avg_sq};
      for (size_t part = 0; part < kPartCount; ++part)
        hashes[i * kPartCount + part] = static_cast<int64_t>(hash_of(parts[part]));
    }
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
  std::vector<int64_t> mine = hashes_of(session);
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
    const auto at = static_cast<size_t>(i);
    return fmt::format("the {} of {} {} not the same on ranks {} after step {}: {} {} from the others",
                       kParts[at % kPartCount], session.optimizer->parameters()[at / kPartCount]->name(),
                       at % kPartCount == 0 ? "are" : "is", fmt::join(ranks, ", "), session.progress.step,
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
