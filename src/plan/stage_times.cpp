#include "plan/stage_times.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "plan/data_exchange.h"
#include "plan/network.h"

namespace trireme::plan {
namespace {

class Clock {
 public:
  Clock(const Job& job, const Layout& layout, const StepOptions& options)
      : job_(job), layout_(layout), options_(options), network_(job), exchange_(job, layout, network_) {
    const Constants& c = job.constants;
    rate_ = matmul_rate(job);
    bf16_rate_ =
        job.precision == Precision::fp8 ? rate_ * job.accelerator.bf16_tflops / job.accelerator.fp8_tflops : rate_;
    memory_ = job.accelerator.memory_gbs * 1e9 * c.memory_share;
    gap_ = c.kernel_gap_us * 1e-6;
    host_ = c.host_us * 1e-6;
    element_ = static_cast<double>(job.element_bytes());
    tensor_ = {layout.tensor, 1};
    context_ = {layout.context, layout.tensor};
    expert_ = {layout.expert, 1};
    const int64_t stage = layout.tensor * layout.context * layout.data;
    pipeline_ = {layout.pipeline, stage};
  }

  Passes block(bool experts) const {
    const std::vector<Op> ops = block_operations(job_, layout_, experts);
    Passes time = compute(ops);
    const double attention = time.forward[index(Term::attention)];
    Terms exchange{};
    at(exchange, Term::tensor) = tensor_exchange(experts);
    at(exchange, Term::context) = std::max(0.0, context_exchange() - attention);
    at(exchange, Term::expert) = experts ? expert_exchange() : 0;
    if (options_.off[index(Term::recompute)]) {
      // nothing is made again
    } else if (layout_.recompute == Recompute::full) {
      at(time.backward, Term::recompute) = sum(time.forward) + sum(exchange);
    } else {
      at(time.backward, Term::recompute) = sum(compute(repeated(job_, layout_, ops)).forward);
    }
    add(time.forward, exchange);
    add(time.backward, exchange);
    // Keys, values and their gradients travel backward, beside the longer backward of attention.
    at(time.backward, Term::context) = std::max(0.0, 2 * context_exchange() - time.backward[index(Term::attention)]);
    if (layout_.tensor > 1 && layout_.sequence_parallel) at(time.backward, Term::tensor) += regather(experts);
    return time;
  }

  Passes compute(const std::vector<Op>& ops) const {
    Passes time;
    double kernels = 0, backward_kernels = 0;
    for (const Op& op : ops) {
      kernels += op.kernels;
      switch (op.kind) {
        case OpKind::product: {
          const bool low = job_.precision == Precision::fp8;
          at(time.forward, Term::products) += product(op.m, op.n, op.k, op.batch, rate_, low);
          at(time.backward, Term::products) +=
              product(op.m, op.k, op.n, op.batch, rate_, low) + product(op.k, op.n, op.m, op.batch, rate_, low);
          backward_kernels += 2;
          break;
        }
        case OpKind::attention:
          at(time.forward, Term::attention) += product(op.m, op.n, op.k, op.batch, bf16_rate_, false);
          at(time.backward, Term::attention) += product(op.m, op.k, op.n, op.batch, bf16_rate_, false) +
                                                product(op.k, op.n, op.m, op.batch, bf16_rate_, false);
          backward_kernels += 2;
          break;
        case OpKind::flash: {
          const double seconds = op.flops / (bf16_rate_ * job_.constants.flash_share);
          at(time.forward, Term::attention) += seconds;
          at(time.backward, Term::attention) += 2.5 * seconds;
          backward_kernels += 2;
          break;
        }
        case OpKind::pass:
          at(time.forward, Term::passes) += op.forward_bytes / memory_;
          at(time.backward, Term::passes) += op.backward_bytes / memory_;
          backward_kernels += op.kernels;
          break;
      }
    }
    if (job_.precision == Precision::fp8) kernels *= 1.5, backward_kernels *= 1.5;  // casts with their scales
    close(time.forward, kernels);
    close(time.backward, backward_kernels);
    return time;
  }

  double transfer() const {
    if (layout_.pipeline == 1 || options_.off[index(Term::bubble)]) return 0;
    const double bytes = element_ * rank_tokens(job_, layout_) * static_cast<double>(job_.shape.decoder.hidden);
    // Tensor ranks send a part each; without sequence parallelism they gather it again (Narayanan et al., 4.1).
    const double parts = network_.transfer(bytes / static_cast<double>(layout_.tensor), pipeline_);
    return parts + (layout_.sequence_parallel ? 0 : network_.seconds(Collective::all_gather, bytes, tensor_));
  }

  /// With the data ranks in every micro-batch, beside its compute.
  void add_exchange(Passes& stage, const StageParameters& parameters) const {
    if (options_.off[index(Term::gather)]) return;
    if (exchange_.gathers_each_pass()) {
      const ExchangeCost again = exchange_.gather_again(parameters);
      Terms first = stage.forward;
      beside(first, exchange_.gather_all(parameters));
      beside(stage.forward, again);
      stage.first_gather = first[index(Term::gather)] - stage.forward[index(Term::gather)];
      ExchangeCost backward = again;
      if (exchange_.reduces_each_pass()) backward += exchange_.reduce(parameters);
      beside(stage.backward, backward);
    } else if (exchange_.reduces_each_pass()) {
      beside(stage.backward, exchange_.reduce(parameters));
    }
  }

  double gradients(const StageParameters& parameters, double backward, double units) const {
    if (options_.off[index(Term::gradients)]) return 0;
    const ExchangeCost cost = exchange_.once_a_step(parameters);
    double seconds = cost.links;
    if (job_.overlap_gradients) {
      // The last unit's gradients come when backward is over.
      const double last = seconds / units;
      seconds = last + std::max(0.0, seconds - last - backward * (1 - 1 / units));
    }
    seconds += cost.rounding + cost.late;
    if (job_.shape.decoder.tied && layout_.pipeline > 1) {
      const auto table = static_cast<double>(job_.shape.decoder.vocab * job_.shape.decoder.hidden);
      seconds +=
          network_.seconds(Collective::all_reduce,
                           static_cast<double>(job_.gradient_bytes) * table / static_cast<double>(layout_.tensor),
                           {2, pipeline_.stride * (layout_.pipeline - 1)});
    }
    return seconds;
  }

  double optimizer(const StageParameters& parameters) const {
    if (options_.off[index(Term::optimizer)]) return 0;
    return job_.constants.optimizer_bytes * parameters.optimizer_elements(job_, layout_) / memory_ + gap_;
  }

 private:
  double product(double m, double n, double k, double batch, double rate, bool low) const {
    const auto filled = [](double size, double tile) { return size / (tile * std::ceil(size / tile)); };
    const double flops = 2 * m * n * k * batch / (filled(m, 128) * filled(n, 128) * filled(k, 64));
    const double bytes = ((m * k + k * n) * (low ? 1 : element_) + m * n * element_) * batch;
    return std::max(flops / rate, bytes / memory_);
  }

  void close(Terms& terms, double kernels) const {
    for (size_t i = 0; i < kTerms; ++i) {
      if (options_.off[i]) terms[i] = 0;
    }
    if (options_.off[index(Term::gaps)]) return;
    at(terms, Term::gaps) = kernels * gap_;
    at(terms, Term::gaps) += std::max(0.0, kernels * host_ - sum(terms));
  }

  /// Work beside an exchange: the longer of both, and the compute is slowed by it. Rounding is work itself.
  void beside(Terms& terms, const ExchangeCost& exchange) const {
    const double work = sum(terms), links = exchange.links;
    at(terms, Term::gather) +=
        std::max(0.0, links - work) + job_.constants.overlap_slowdown * std::min(links, work) + exchange.rounding;
  }

  double activation_bytes() const {
    return element_ * rank_tokens(job_, layout_) * static_cast<double>(job_.shape.decoder.hidden);
  }

  /// Around attention and around the feed-forward layer: an all-reduce each, or a gather and a scatter.
  double tensor_exchange(bool experts) const {
    if (layout_.tensor == 1 || options_.off[index(Term::tensor)]) return 0;
    const double times = experts && job_.shape.experts.shared_ffn == 0 ? 1 : 2;
    return times * network_.seconds(Collective::all_reduce, activation_bytes(), tensor_);
  }

  /// Inputs are kept in parts, and gathered again for the gradients of weights.
  double regather(bool experts) const {
    if (options_.off[index(Term::tensor)]) return 0;
    const double times = experts && job_.shape.experts.shared_ffn == 0 ? 1 : 2;
    return times * network_.seconds(Collective::all_gather, activation_bytes(), tensor_);
  }

  double context_exchange() const {
    if (layout_.context == 1 || options_.off[index(Term::context)]) return 0;
    const describe::ModelShape& d = job_.shape.decoder;
    const double width = std::max(static_cast<double>(d.kv_heads) / static_cast<double>(layout_.tensor), 1.0) *
                         static_cast<double>(d.head_dim);
    const double piece = 2 * element_ * rank_tokens(job_, layout_) * width;
    return static_cast<double>(layout_.context - 1) * network_.transfer(piece, context_);
  }

  double expert_exchange() const {
    if (layout_.expert == 1 || options_.off[index(Term::expert)]) return 0;
    const double tokens = rank_tokens(job_, layout_) / static_cast<double>(layout_.sequence_split());
    const auto copies = static_cast<double>(job_.shape.experts.active);
    const double bytes =
        element_ * tokens * copies * static_cast<double>(job_.shape.decoder.hidden) * job_.expert_imbalance;
    return 2 * network_.all_to_all(bytes, copies, expert_);
  }

  const Job& job_;
  const Layout& layout_;
  const StepOptions& options_;
  Network network_;
  double rate_ = 0, bf16_rate_ = 0, memory_ = 0, gap_ = 0, host_ = 0, element_ = 2;
  DataExchange exchange_;
  Group tensor_, context_, expert_, pipeline_;
};

}  // namespace

double sum(const Terms& terms) { return std::accumulate(terms.begin(), terms.end(), 0.0); }

Stages make_stages(const Job& job, const Layout& layout, const StepOptions& options) {
  const Clock clock(job, layout, options);
  const Passes dense = clock.block(false);
  const Passes experts = job.shape.has_experts() ? clock.block(true) : Passes{};
  const std::vector<int64_t> layers = stage_layers(job.shape.decoder.layers, layout.stages());
  Stages stages;
  stages.times.transfer = clock.transfer();
  int64_t first = 0;
  for (size_t s = 0; s < layers.size(); ++s) {
    Passes stage;
    for (const auto& [block, count] : {std::pair(&dense, dense_layers(job, first, layers[s])),
                                       {&experts, layers[s] - dense_layers(job, first, layers[s])}}) {
      add(stage.forward, block->forward, static_cast<double>(count));
      add(stage.backward, block->backward, static_cast<double>(count));
    }
    first += layers[s];
    const auto around = [&](const Passes& part) {
      add(stage.forward, part.forward);
      add(stage.backward, part.backward);
    };
    if (s == 0) around(clock.compute(embedding_operations(job, layout)));
    if (s + 1 == layers.size()) {
      around(clock.compute(head_operations(job, layout)));
      // A further token: a block and the head once more.
      for (int64_t i = 0; i < job.shape.mtp_layers; ++i) {
        around(job.shape.has_experts() ? experts : dense);
        around(clock.compute(head_operations(job, layout)));
      }
    }
    clock.add_exchange(stage, stage_parameters(job, layout, static_cast<int64_t>(s)));
    stages.times.forward.push_back(sum(stage.forward));
    stages.times.backward.push_back(sum(stage.backward));
    stages.passes.push_back(stage);
  }
  return stages;
}

Terms rank_terms(const Layout& layout, const Stages& stages, int64_t rank) {
  Terms terms{};
  for (int64_t chunk = 0; chunk < layout.virtual_stages; ++chunk) {
    const Passes& stage = stages.passes[static_cast<size_t>(chunk * layout.pipeline + rank)];
    add(terms, stage.forward);
    add(terms, stage.backward);
  }
  return terms;
}

std::vector<Passes> passes_of_each(const Job& job, const Layout& layout, const std::vector<Op>& operations) {
  const StepOptions options;
  const Clock clock(job, layout, options);
  std::vector<Passes> result;
  for (const Op& operation : operations) result.push_back(clock.compute({operation}));
  return result;
}

// Rank 0 ends last, and its exchange starts last.
Ending make_ending(const Job& job, const Layout& layout, const StepOptions& options, const Stages& stages) {
  const Clock clock(job, layout, options);
  Ending ending;
  for (const int64_t rank : {int64_t{0}, layout.pipeline - 1}) {
    StageParameters parameters;
    for (int64_t chunk = 0; chunk < layout.virtual_stages; ++chunk)
      parameters += stage_parameters(job, layout, chunk * layout.pipeline + rank);
    ending.update = std::max(ending.update, clock.optimizer(parameters));
    if (rank != 0) continue;
    const double units = static_cast<double>(stage_layers(job.shape.decoder.layers, layout.stages())[0]) + 1;
    ending.exchange = clock.gradients(parameters, stages.times.backward[0], units);
  }
  return ending;
}

}  // namespace trireme::plan
