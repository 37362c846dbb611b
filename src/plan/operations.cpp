#include "plan/operations.h"

#include <algorithm>

namespace trireme::plan {
namespace {

constexpr double kElement = 2;  // bytes of an activation; fp32 doubles them at the end

class Block {
 public:
  Block(const Job& job, const Layout& layout)
      : job_(job),
        d_(job.shape.decoder),
        tokens_(rank_tokens(job, layout)),
        hidden_(static_cast<double>(d_.hidden)),
        t_(static_cast<double>(layout.tensor)),
        split_(static_cast<double>(layout.sequence_split())),
        layout_(layout) {}

  void product(std::string_view name, double m, double n, double k, double saved, double batch = 1) {
    ops_.push_back({.name = name,
                    .kind = OpKind::product,
                    .m = m,
                    .n = n,
                    .k = k,
                    .batch = batch,
                    .flops = 2 * m * n * k * batch,
                    .saved = saved,
                    .weight = n * k * batch});
  }
  void pass(std::string_view name, double forward, double backward, double kernels, double saved, bool core = false) {
    ops_.push_back({.name = name,
                    .forward_bytes = forward,
                    .backward_bytes = backward,
                    .kernels = kernels,
                    .saved = saved,
                    .core = core});
  }

  /// Of the last one: it is a norm or an activation, or the product that keeps the output of one.
  void cheap() { ops_.back().cheap = true; }

  /// A norm reads and writes once forward; backward reads two and writes one, and sums the weight's gradient.
  void norm(std::string_view name) {
    const double elements = tokens_ * hidden_ / split_;
    pass(name, 2 * kElement * elements, 4 * kElement * elements, 1, kElement * elements);
    cheap();
  }

  void residual(std::string_view name) {
    const double elements = tokens_ * hidden_ / split_;
    const double mask = job_.dropout() ? 1 : 0;
    pass(name, (3 * kElement + mask) * elements, (2 * kElement + mask) * elements, 1, mask * elements);
  }

  void attention() {
    norm("attention norm");
    if (job_.shape.is_latent())
      latent_projections();
    else
      projections();
    core();
    product("output projection", tokens_, hidden_, value_width(), kElement * tokens_ * value_width());
    residual("attention residual");
  }

  void feed_forward(double width, std::string_view up, std::string_view activation, std::string_view down) {
    const double inner = width / t_, halves = job_.shape.is_gated() ? 2 : 1;
    product(up, tokens_, halves * inner, hidden_, kElement * tokens_ * hidden_ / split_);
    cheap();
    pass(activation, (halves + 1) * kElement * tokens_ * inner, (2 * halves + 1) * kElement * tokens_ * inner, 1,
         halves * kElement * tokens_ * inner);
    cheap();
    product(down, tokens_, hidden_, inner, kElement * tokens_ * inner);
    cheap();
  }

  void experts() {
    const describe::ExpertShape& e = job_.shape.experts;
    const double here = tokens_ / split_ * job_.expert_imbalance;
    const double routed = here * static_cast<double>(e.active), width = static_cast<double>(e.ffn);
    const double local = static_cast<double>(e.experts) / static_cast<double>(layout_.expert);
    const double halves = job_.shape.is_gated() ? 2 : 1;
    product("router", tokens_ / split_, static_cast<double>(e.experts), hidden_, 0);
    pass("top-k and permutation", 6 * kElement * routed * hidden_, 6 * kElement * routed * hidden_, 6,
         kElement * routed * hidden_);
    product("expert gate and up", routed / local, halves * width, hidden_, 0, local);
    pass("expert activation", (halves + 1) * kElement * routed * width, (2 * halves + 1) * kElement * routed * width, 1,
         halves * kElement * routed * width);
    cheap();
    product("expert down", routed / local, hidden_, width, kElement * routed * width, local);
    cheap();
    if (e.shared_ffn > 0)
      feed_forward(static_cast<double>(e.shared_ffn), "shared gate and up", "shared activation", "shared down");
  }

  std::vector<Op> take() {
    if (job_.precision == Precision::fp32) {
      for (Op& op : ops_) op.saved *= 2, op.forward_bytes *= 2, op.backward_bytes *= 2;
    }
    return std::move(ops_);
  }

  double tokens() const { return tokens_; }

 private:
  double heads() const { return static_cast<double>(d_.heads) / t_; }
  // Fewer key and value heads than tensor ranks are held more than once.
  double kv_heads() const { return std::max(static_cast<double>(d_.kv_heads) / t_, 1.0); }
  double query_width() const { return heads() * static_cast<double>(d_.head_dim); }
  double value_dim() const {
    return static_cast<double>(job_.shape.is_latent() ? job_.shape.latent.value_dim : d_.head_dim);
  }
  double value_width() const { return heads() * value_dim(); }

  void projections() {
    const double key_value = kv_heads() * static_cast<double>(d_.head_dim);
    product("query, key and value", tokens_, query_width() + 2 * key_value, hidden_,
            kElement * tokens_ * hidden_ / split_);
    cheap();
    key_width_ = value_kept_ = key_value;
    const double rotated = d_.is_gpt() ? 0 : query_width() + key_value;
    const double moved = query_width() + 2 * key_value;
    // Rotation, norms of heads, or the transposition that scores need.
    const double bytes = 2 * kElement * tokens_ * (rotated > 0 ? rotated : moved);
    pass("query and key", bytes, bytes, d_.qk_norm ? 2 : 1, d_.qk_norm ? kElement * tokens_ * rotated : 0);
  }

  void latent_projections() {
    const describe::LatentAttention& l = job_.shape.latent;
    const double query_rank = static_cast<double>(l.query_rank), kv_rank = static_cast<double>(l.kv_rank);
    const double input = kElement * tokens_ * hidden_ / split_;
    const double rotary = static_cast<double>(l.rotary_dim), content = static_cast<double>(l.content_dim);
    if (query_rank > 0) {
      product("query down", tokens_, query_rank, hidden_, input);
      product("query up", tokens_, query_width(), query_rank, 2 * kElement * tokens_ * query_rank);
    } else {
      product("query", tokens_, query_width(), hidden_, input);
    }
    product("key and value down", tokens_, kv_rank + rotary, hidden_, query_rank > 0 ? 0 : input);
    product("key and value up", tokens_, heads() * (content + value_dim()), kv_rank, 2 * kElement * tokens_ * kv_rank);
    key_width_ = query_width();
    value_kept_ = value_width();
    const double bytes = 2 * kElement * tokens_ * (query_width() + key_width_ + query_rank + kv_rank);
    pass("latent norms and rotation", bytes, bytes, 4, 0);
  }

  void core() {
    const double inputs = kElement * tokens_ * (query_width() + key_width_ + value_kept_);
    const double head_dim = static_cast<double>(d_.head_dim), seen = tokens_seen(job_);
    if (job_.flash && !job_.dropout()) {
      ops_.push_back({.name = "attention",
                      .kind = OpKind::flash,
                      .m = tokens_,
                      .n = seen,
                      .k = head_dim,
                      .batch = heads(),
                      .flops = 2 * tokens_ * seen * heads() * (head_dim + value_dim()),
                      .saved = inputs + 4 * tokens_ * heads()});
      return;
    }
    const double scores = tokens_ * seen * heads();
    const double rows = static_cast<double>(job_.seq_len) / static_cast<double>(layout_.context);
    const double batch = heads() * tokens_ / rows;
    ops_.push_back({.name = "scores",
                    .kind = OpKind::attention,
                    .m = rows,
                    .n = seen,
                    .k = head_dim,
                    .batch = batch,
                    .flops = 2 * scores * head_dim,
                    .saved = inputs,
                    .core = true});
    pass("softmax", 2 * kElement * scores, 3 * kElement * scores, 1, kElement * scores, true);
    if (job_.dropout())
      pass("attention dropout", (2 * kElement + 1) * scores, (2 * kElement + 1) * scores, 1, (kElement + 1) * scores,
           true);
    ops_.push_back({.name = "weighted values",
                    .kind = OpKind::attention,
                    .m = rows,
                    .n = value_dim(),
                    .k = seen,
                    .batch = batch,
                    .flops = 2 * scores * value_dim(),
                    .core = true});
  }

  const Job& job_;
  const describe::ModelShape& d_;
  double tokens_, hidden_, t_, split_;
  const Layout& layout_;
  double key_width_ = 0, value_kept_ = 0;
  std::vector<Op> ops_;
};

}  // namespace

double rank_tokens(const Job& job, const Layout& layout) {
  return static_cast<double>(layout.micro_batch * job.seq_len) / static_cast<double>(layout.context);
}

double loss_rows(const Job& job, const Layout& layout) {
  const double tokens = rank_tokens(job, layout);
  if (!job.loss_in_chunks) return tokens;
  return static_cast<double>(
      describe::loss_rows_per_chunk(static_cast<int64_t>(tokens), job.shape.decoder.vocab, job.element_bytes()));
}

double tokens_seen(const Job& job) {
  if (!job.flash || job.dropout()) return static_cast<double>(job.seq_len);
  return describe::causal_tokens_seen(job.seq_len, job.shape.decoder.sliding_window);
}

std::vector<Op> block_operations(const Job& job, const Layout& layout, bool experts) {
  Block block(job, layout);
  block.attention();
  block.norm("feed-forward norm");
  if (experts)
    block.experts();
  else
    block.feed_forward(static_cast<double>(job.shape.decoder.ffn), "up projection", "activation", "down projection");
  block.residual("feed-forward residual");
  return block.take();
}

std::vector<Op> head_operations(const Job& job, const Layout& layout) {
  Block block(job, layout);
  block.norm("final norm");
  const double vocabulary = static_cast<double>(job.shape.decoder.vocab) / static_cast<double>(layout.tensor);
  const double hidden = static_cast<double>(job.shape.decoder.hidden);
  block.product("logits", block.tokens(), vocabulary, hidden,
                kElement * block.tokens() * hidden / static_cast<double>(layout.sequence_split()));
  // Logits are cast to fp32 and kept so; in chunks nothing of them outlives the chunk.
  const double rows = loss_rows(job, layout);
  block.pass("loss", 14 * block.tokens() * vocabulary, 8 * block.tokens() * vocabulary, 5,
             (job.precision == Precision::fp32 ? 2 : 4) * rows * vocabulary);
  return block.take();
}

std::vector<Op> embedding_operations(const Job& job, const Layout& layout) {
  Block block(job, layout);
  const double elements =
      block.tokens() * static_cast<double>(job.shape.decoder.hidden) / static_cast<double>(layout.sequence_split());
  const double mask = job.dropout() ? 1 : 0;
  block.pass("embedding", 2 * kElement * elements, 3 * kElement * elements, 2, mask * elements);
  return block.take();
}

OpTotals total(const std::vector<Op>& operations) {
  OpTotals sum;
  for (const Op& op : operations) {
    sum.flops += op.flops;
    sum.saved += op.saved;
    sum.weights += op.weight;
  }
  return sum;
}

double kept_bytes(const Job& job, const Layout& layout, const std::vector<Op>& block) {
  const auto element = static_cast<double>(job.element_bytes());
  const double border = element * rank_tokens(job, layout) * static_cast<double>(job.shape.decoder.hidden) /
                        static_cast<double>(layout.sequence_split());
  if (layout.recompute == Recompute::full) return border;
  double kept = 0;
  if (layout.recompute == Recompute::selective && job.selective == Selective::products) {
    // The block's input, half of what products make, and attention's output.
    kept = border;
    for (const Op& op : block) {
      if (op.kind == OpKind::product) kept += element * op.m * op.n * op.batch / 2;
      if (op.kind == OpKind::flash) kept += element * op.m * op.batch * op.k;
    }
    return kept;
  }
  for (const Op& op : block) {
    // The inputs of the scores are kept: the core is made again from them.
    const bool core = job.selective == Selective::core && op.core && op.kind == OpKind::pass;
    const bool cheap = job.selective == Selective::cheap && op.cheap && op.kind == OpKind::product;
    if (layout.recompute == Recompute::none || (!core && !cheap)) kept += op.saved;
  }
  return kept;
}

std::vector<Op> repeated(const Job& job, const Layout& layout, const std::vector<Op>& block) {
  if (layout.recompute == Recompute::none) return {};
  if (layout.recompute == Recompute::full) return block;
  std::vector<Op> again;
  for (const Op& op : block) {
    const bool all = job.selective == Selective::core    ? op.core
                     : job.selective == Selective::cheap ? op.kind == OpKind::pass && op.cheap
                                                         : op.kind == OpKind::pass;
    if (all) again.push_back(op);
    if (job.selective == Selective::products && op.kind == OpKind::product) {
      again.push_back(op);
      again.back().n /= 2;
      again.back().flops /= 2;
    }
  }
  return again;
}

}  // namespace trireme::plan
