#include "parallel/quantized_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>

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
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      const int64_t held = unit.rows[i].size() * unit.parameters[i]->row_elements();
      for (int64_t r = 0; r < ranks; ++r) elements.push_back(nn::rows_of_rank(held, r, ranks).size());
    }
    parts.emplace_back(format, elements, ranks);
  }
  return parts;
}

int64_t own_bytes(const QuantizedParts& parts, int64_t rank) { return parts.rank_bytes()[static_cast<size_t>(rank)]; }

}  // namespace

QuantizedReduceScatter::QuantizedReduceScatter(comm::Communicator& ranks, const std::string& name,
                                               std::vector<QuantizedParts> parts, at::Device device,
                                               bool error_feedback)
    : ranks_(ranks), parts_(std::move(parts)) {
  // Every rank asks for the same memory, whatever it will receive.
  int64_t most_sent = 0, most_received = 0;
  for (const QuantizedParts& list : parts_) {
    most_sent = std::max(most_sent, list.bytes());
    for (const int64_t bytes : list.rank_bytes()) most_received = std::max(most_received, bytes * ranks.size());
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
  const memory::PurposeScope scope(memory::Purpose::gradients);
  for (size_t i = 0; i < parts_.size(); ++i)
    for (size_t t = 0; t < parts_[i].tensors(); ++t)
      residuals_[i].push_back(at::zeros({parts_[i].elements_in(t)}, at::TensorOptions(at::kFloat).device(device)));
}

void QuantizedReduceScatter::post(size_t index, at::TensorList whole, at::TensorList own, bool accumulate) {
  while (exchanges_.size() >= buffers_.size()) finish_oldest();
  const QuantizedParts& parts = parts_[index];
  const Buffer& buffer = buffers_[next_buffer_];
  const int64_t mine = own_bytes(parts, ranks_.rank());
  const at::Tensor send = buffer.send.tensor().narrow(0, 0, parts.bytes());
  for (int64_t r = 0; r < ranks_.size(); ++r) {
    const at::Tensor bytes = parts.bytes_in(send, r);
    for (size_t t = 0; t < whole.size(); ++t)
      ops::quantize(parts.format(), parts.elements_of(whole[t], t, r), parts.packed(bytes, t, r),
                    residuals_[index].empty() ? at::Tensor() : parts.elements_of(residuals_[index][t], t, r));
  }
  const std::vector<int64_t> from_each(static_cast<size_t>(ranks_.size()), mine);
  comm::Work work = ranks_.all_to_all_v_async(buffer.receive.tensor().narrow(0, 0, mine * ranks_.size()), send,
                                              from_each, parts.rank_bytes());
  exchanges_.push_back({index, next_buffer_, own.vec(), accumulate, std::move(work)});
  next_buffer_ = (next_buffer_ + 1) % buffers_.size();
}

void QuantizedReduceScatter::finish_oldest() {
  Exchange& exchange = exchanges_.front();
  const int64_t start = steady_nanoseconds();
  exchange.work.wait();
  waited_seconds_ += seconds_since(start);
  const QuantizedParts& parts = parts_[exchange.index];
  const int64_t rank = ranks_.rank(), mine = own_bytes(parts, rank);
  const at::Tensor& received = buffers_[exchange.buffer].receive.tensor();
  for (size_t t = 0; t < exchange.own.size(); ++t) {
    std::vector<at::Tensor> contributions;
    for (int64_t r = 0; r < ranks_.size(); ++r)
      contributions.push_back(parts.packed(received.narrow(0, r * mine, mine), t, rank));
    ops::sum_dequantized(parts.format(), contributions, exchange.own[t].view({-1}), exchange.accumulate);
  }
  exchanges_.pop_front();
}

bool QuantizedReduceScatter::done(size_t index) {
  const auto under_way = [&] {
    return std::any_of(exchanges_.begin(), exchanges_.end(),
                       [&](const Exchange& exchange) { return exchange.index == index; });
  };
  while (under_way()) {
    if (!exchanges_.front().work.done()) return false;
    finish_oldest();
  }
  return true;
}

void QuantizedReduceScatter::finish(size_t index) {
  while (std::any_of(exchanges_.begin(), exchanges_.end(),
                     [&](const Exchange& exchange) { return exchange.index == index; }))
    finish_oldest();
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
  send_ = SharedTensor(replicas, "quantized sums sent", most_sent, at::kByte, device, memory::Purpose::communication,
                       comm::Sharing::each);
  received_ = SharedTensor(replicas, "quantized sums", most, at::kByte, device, memory::Purpose::communication,
                           comm::Sharing::each);
  residuals_.resize(units.size());
  if (!options.error_feedback) return;
  const memory::PurposeScope scope(memory::Purpose::gradients);
  for (size_t u = 0; u < units.size(); ++u)
    for (size_t t = 0; t < parts[u].tensors(); ++t)
      residuals_[u].push_back(
          at::zeros({parts[u].elements_of_rank(t, replicas.rank())}, at::TensorOptions(at::kFloat).device(device)));
}

void QuantizedGradients::replicate(size_t unit, at::TensorList shards) {
  std::vector<at::Tensor> own;
  for (size_t t = 0; t < shards.size(); ++t)
    own.push_back(over_replicas_->parts(unit).elements_of(shards[t], t, replicas_.rank()));
  over_replicas_->post(unit, shards, own, /*accumulate=*/false);
  started_.push_back({unit, shards.vec()});
}

void QuantizedGradients::finish_replicas() {
  for (const Started& started : started_) {
    over_replicas_->finish(started.unit);
    const QuantizedGather& gather = gathers_[started.unit];
    std::vector<at::Tensor> own;
    for (size_t t = 0; t < started.shards.size(); ++t)
      own.push_back(gather.parts().elements_of(started.shards[t], t, replicas_.rank()));
    comm::Work work = gather.post(own, send_.tensor(), received_.tensor(), residuals_[started.unit]);
    const int64_t start = steady_nanoseconds();
    work.wait();
    waited_seconds_ += seconds_since(start);
    gather.unpack(received_.tensor(), started.shards);
  }
  started_.clear();
}

double QuantizedGradients::take_waited_seconds() {
  const double over_replicas = over_replicas_ == nullptr ? 0 : over_replicas_->take_waited_seconds();
  return std::exchange(waited_seconds_, 0.0) + over_shards_.take_waited_seconds() + over_replicas;
}

}  // namespace trireme::parallel
