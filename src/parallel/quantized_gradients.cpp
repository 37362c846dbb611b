#include "parallel/quantized_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "memory/purpose.h"

namespace trireme::parallel {
namespace {

// One list is rounded while another is under way.
constexpr size_t kBuffers = 2;

double seconds_since(int64_t start) { return static_cast<double>(steady_nanoseconds() - start) * 1e-9; }

std::vector<QuantizedParts> parts_of_units(const ops::QuantizedFormat& format, std::span<const Unit> units,
                                           int64_t ranks) {
  std::vector<QuantizedParts> parts;
  for (const Unit& unit : units) parts.push_back(QuantizedParts::of_unit(format, unit, ranks));
  return parts;
}

// Of the rows that this rank holds of each unit, as the ranks of another axis divide them.
std::vector<QuantizedParts> parts_of_shards(const ops::QuantizedFormat& format, std::span<const Unit> units,
                                            int64_t ranks) {
  std::vector<QuantizedParts> parts;
  for (const Unit& unit : units) {
    std::vector<int64_t> elements;
    std::vector<bool> exact;
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      const int64_t held = unit.rows[i].size() * unit.parameters[i]->row_elements();
      for (int64_t r = 0; r < ranks; ++r) elements.push_back(nn::rows_of_rank(held, r, ranks).size());
      exact.push_back(unit.parameters[i]->shape().size() == 1);
    }
    parts.emplace_back(format, exact, elements, ranks);
  }
  return parts;
}

at::Tensor zeros(int64_t elements, at::Device device) {
  const memory::PurposeScope scope(memory::Purpose::gradients);
  return at::zeros({elements}, at::TensorOptions(at::kFloat).device(device));
}

}  // namespace

QuantizedReduceScatter::QuantizedReduceScatter(comm::Communicator& ranks, const std::string& name,
                                               std::vector<QuantizedParts> parts, at::Device device,
                                               bool error_feedback)
    : ranks_(ranks), parts_(std::move(parts)) {
  // Every rank asks for the same memory, whatever it will send and receive.
  int64_t most_sent = 0, most_received = 0;
  for (const QuantizedParts& list : parts_) {
    for (const int64_t bytes : list.rank_bytes()) {
      most_sent = std::max(most_sent, list.bytes() - bytes);
      most_received = std::max(most_received, bytes * (ranks.size() - 1));
    }
  }
  for (size_t i = 0; i < std::min(kBuffers, parts_.size()); ++i) {
    const auto bytes = [&](const char* what, int64_t count) {
      return SharedTensor(ranks, fmt::format("quantized gradients/{} {} {}", name, what, i), count, at::kByte, device,
                          memory::Purpose::communication, comm::Sharing::each);
    };
    buffers_.push_back({bytes("sent", most_sent), bytes("received", most_received)});
  }
  residuals_.resize(parts_.size());
  if (!error_feedback) return;
  for (size_t i = 0; i < parts_.size(); ++i)
    for (size_t t = 0; t < parts_[i].tensors(); ++t)
      residuals_[i].push_back(zeros(
          parts_[i].exact(t) ? 0 : parts_[i].elements_in(t) - parts_[i].elements_of_rank(t, ranks.rank()), device));
}

// Those of the other ranks lie one after another.
at::Tensor QuantizedReduceScatter::residual_of(size_t index, size_t t, int64_t rank) const {
  const QuantizedParts& parts = parts_[index];
  if (residuals_[index].empty() || parts.exact(t)) return {};
  const int64_t first =
      parts.first_of_rank(t, rank) - (rank > ranks_.rank() ? parts.elements_of_rank(t, ranks_.rank()) : 0);
  return residuals_[index][t].narrow(0, first, parts.elements_of_rank(t, rank));
}

void QuantizedReduceScatter::post(size_t index, at::TensorList whole, at::TensorList own, bool accumulate) {
  while (exchanges_.size() >= buffers_.size()) finish_oldest();
  const QuantizedParts& parts = parts_[index];
  const Buffer& buffer = buffers_[next_buffer_];
  std::vector<int64_t> to_each = parts.rank_bytes(), from_each(to_each.size());
  std::vector<at::Tensor> sums;
  int64_t sent = 0;
  for (int64_t r = 0; r < ranks_.size(); ++r) {
    const auto rank = static_cast<size_t>(r);
    if (r == ranks_.rank()) {
      for (size_t t = 0; t < whole.size(); ++t) {
        const at::Tensor mine = parts.elements_of(whole[t], t, r), sum = own[t].view({-1});
        sums.push_back(sum);
        if (mine.data_ptr() == sum.data_ptr()) continue;
        if (accumulate)
          sum.add_(mine);
        else
          sum.copy_(mine);
      }
      to_each[rank] = 0;
      continue;
    }
    const at::Tensor bytes = buffer.send.tensor().narrow(0, sent, to_each[rank]);
    for (size_t t = 0; t < whole.size(); ++t)
      parts.pack(t, r, parts.elements_of(whole[t], t, r), bytes, residual_of(index, t, r));
    sent += to_each[rank];
    from_each[rank] = parts.rank_bytes()[static_cast<size_t>(ranks_.rank())];
  }
  const int64_t received = std::accumulate(from_each.begin(), from_each.end(), int64_t{0});
  comm::Work work = ranks_.all_to_all_v_async(buffer.receive.tensor().narrow(0, 0, received),
                                              buffer.send.tensor().narrow(0, 0, sent), from_each, to_each);
  exchanges_.push_back({index, next_buffer_, std::move(sums), std::move(work)});
  next_buffer_ = (next_buffer_ + 1) % buffers_.size();
}

void QuantizedReduceScatter::finish_oldest() {
  Exchange& exchange = exchanges_.front();
  const int64_t start = steady_nanoseconds();
  exchange.work.wait();
  waited_seconds_ += seconds_since(start);
  const QuantizedParts& parts = parts_[exchange.index];
  const int64_t rank = ranks_.rank(), bytes = parts.rank_bytes()[static_cast<size_t>(rank)];
  const at::Tensor& received = buffers_[exchange.buffer].receive.tensor();
  std::vector<at::Tensor> contributions;
  for (int64_t i = 0; i + 1 < ranks_.size(); ++i) contributions.push_back(received.narrow(0, i * bytes, bytes));
  for (size_t t = 0; t < exchange.own.size(); ++t) parts.add(t, rank, contributions, exchange.own[t]);
  exchanges_.pop_front();
}

bool QuantizedReduceScatter::has_room() {
  while (!exchanges_.empty() && exchanges_.front().work.done()) finish_oldest();
  return exchanges_.size() < buffers_.size();
}

bool QuantizedReduceScatter::done(size_t index) {
  has_room();
  return std::none_of(exchanges_.begin(), exchanges_.end(),
                      [&](const Exchange& exchange) { return exchange.index == index; });
}

void QuantizedReduceScatter::finish(size_t index) {
  while (!done(index)) finish_oldest();
}

void QuantizedReduceScatter::forget_residuals() {
  for (const std::vector<at::Tensor>& list : residuals_)
    for (const at::Tensor& residual : list) residual.zero_();
}

QuantizedGradients::QuantizedGradients(std::span<const Unit> units, comm::Communicator& shards,
                                       comm::Communicator& replicas, at::Device device,
                                       const QuantizedGradientOptions& options)
    : replicas_(replicas),
      over_shards_(shards, "shard", parts_of_units(options.format, units, shards.size()), device,
                   options.error_feedback) {
  if (replicas.size() == 1) return;
  const std::vector<QuantizedParts> parts = parts_of_shards(options.format, units, replicas.size());
  over_replicas_ =
      std::make_unique<QuantizedReduceScatter>(replicas, "replicate", parts, device, options.error_feedback);
  int64_t most = 0, most_sent = 0;
  for (const QuantizedParts& unit : parts) {
    gathers_.emplace_back(replicas, unit);
    most = std::max(most, unit.bytes());
    for (const int64_t bytes : unit.rank_bytes()) most_sent = std::max(most_sent, bytes);
  }
  for (size_t i = 0; i < messages_.size(); ++i) {
    const auto bytes = [&](const char* what, int64_t count) {
      return SharedTensor(replicas, fmt::format("quantized sums {} {}", what, i), count, at::kByte, device,
                          memory::Purpose::communication, comm::Sharing::each);
    };
    messages_[i] = {bytes("sent", most_sent), bytes("received", most), {}};
  }
  residuals_.resize(units.size());
  if (!options.error_feedback) return;
  for (size_t u = 0; u < units.size(); ++u)
    for (size_t t = 0; t < parts[u].tensors(); ++t)
      residuals_[u].push_back(zeros(parts[u].exact(t) ? 0 : parts[u].elements_of_rank(t, replicas.rank()), device));
}

void QuantizedGradients::replicate(size_t unit, at::TensorList shards) {
  if (over_replicas_ == nullptr) return;
  std::vector<at::Tensor> own;
  for (size_t t = 0; t < shards.size(); ++t)
    own.push_back(over_replicas_->parts(unit).elements_of(shards[t], t, replicas_.rank()));
  over_replicas_->post(unit, shards, own, /*accumulate=*/false);
  started_.push_back({unit, shards.vec()});
}

// This rank's part of a sum, to all copies.
void QuantizedGradients::tell(const Started& started, Message& message) {
  const QuantizedGather& gather = gathers_[started.unit];
  std::vector<at::Tensor> own;
  for (size_t t = 0; t < started.shards.size(); ++t)
    own.push_back(gather.parts().elements_of(started.shards[t], t, replicas_.rank()));
  message.work = gather.post(own, message.send.tensor(), message.received.tensor(), residuals_[started.unit]);
}

void QuantizedGradients::finish_replicas() {
  for (const Started& started : started_) over_replicas_->finish(started.unit);
  for (size_t i = 0; i <= started_.size(); ++i) {
    if (i < started_.size()) tell(started_[i], messages_[i % 2]);
    if (i == 0) continue;
    Message& message = messages_[(i - 1) % 2];
    const int64_t start = steady_nanoseconds();
    message.work.wait();
    waited_seconds_ += seconds_since(start);
    gathers_[started_[i - 1].unit].unpack(message.received.tensor(), started_[i - 1].shards);
  }
  started_.clear();
}

void QuantizedGradients::forget_residuals() {
  over_shards_.forget_residuals();
  if (over_replicas_ != nullptr) over_replicas_->forget_residuals();
  for (const std::vector<at::Tensor>& unit : residuals_)
    for (const at::Tensor& residual : unit) residual.zero_();
}

double QuantizedGradients::take_waited_seconds() {
  const double over_replicas = over_replicas_ == nullptr ? 0 : over_replicas_->take_waited_seconds();
  return std::exchange(waited_seconds_, 0.0) + over_shards_.take_waited_seconds() + over_replicas;
}

}  // namespace trireme::parallel
