#include "plan/explain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "plan/data_exchange.h"
#include "plan/flops.h"
#include "plan/memory.h"
#include "plan/stage_times.h"

namespace trireme::plan {
namespace {

constexpr const char* kRoofline = "Williams et al., doi:10.1145/1498765.1498785; tiles: docs/plan.md";
constexpr const char* kAlphaBeta = "Hockney, 1994; Thakur et al., doi:10.1177/1094342005051521";

class TimeExplainer {
 public:
  TimeExplainer(const Job& job, const Layout& layout)
      : job_(job), layout_(layout), network_(job), time_(step_time(job, layout)) {}

  Explanation of(Term term) {
    Explanation& result = result_;
    result.name = name_of(term);
    result.value = time_.terms[index(term)];
    switch (term) {
      case Term::products:
        result.formula =
            "for each product [m, k] x [k, n], once forward and twice backward: max(2 m n k / (filled x rate), bytes / "
            "(memory_share x bandwidth)); filled: the used share of the last tiles of 128 x 128 x 64";
        rate();
        memory_rate();
        repetitions();
        result.parts = operations({OpKind::product}, Term::products);
        result.source = kRoofline;
        break;
      case Term::attention:
        result.formula =
            "fused: FLOPs / (flash_share x rate), backward 2.5 times that; scores written out: as products, twice "
            "backward";
        attention_rate();
        number("flash_share", "{}", job_.constants.flash_share);
        repetitions();
        result.parts = operations({OpKind::flash, OpKind::attention}, Term::attention);
        result.source = fmt::format("Dao, arXiv:2307.08691: backward is 2.5 x forward; {}", kRoofline);
        break;
      case Term::passes:
        result.formula = "bytes read and written / (memory_share x bandwidth)";
        memory_rate();
        repetitions();
        result.parts = operations({OpKind::pass}, Term::passes);
        result.source = "bytes of each pass: plan/operations.cpp; Korthikanti et al., arXiv:2205.05198, section 4.1";
        break;
      case Term::gaps:
        result.formula =
            "kernels x kernel_gap, and what a layer of short kernels waits for the host: max(0, kernels x host - its "
            "work)";
        number("kernel_gap", "{} us", job_.constants.kernel_gap_us);
        number("host", "{} us to start a kernel", job_.constants.host_us);
        number("kernels of a block", "{:.0f} forward{}", kernels(),
               job_.precision == Precision::fp8 ? ", x 1.5 for casts to fp8" : "");
        repetitions();
        result.source = "constants of this project (docs/plan.md, Time)";
        break;
      case Term::recompute:
        result.formula = "forward work that backward does again, with its exchange between tensor ranks";
        number("recompute", "{}", config::name_of(layout_.recompute));
        repetitions();
        result.source = "Chen et al., arXiv:1604.06174; selective: Korthikanti et al., arXiv:2205.05198, section 5";
        break;
      case Term::tensor: {
        const double bytes = activation_bytes();
        result.formula =
            "a block: all-reduces forward and as many backward, each 2 ((t - 1)/t x bytes / bandwidth + latency); with "
            "sequence "
            "parallelism as many gathers more backward, of half that";
        number("t", "{} tensor ranks", layout_.tensor);
        number("all-reduces", "2 a block forward{}",
               job_.shape.has_experts() && job_.shape.experts.shared_ffn == 0
                   ? ", 1 where experts are all of the feed-forward layer"
                   : "");
        number("bytes", "{:.4g} MB: {:.0f} tokens x {} hidden x {}", bytes / 1e6, rank_tokens(job_, layout_),
               job_.shape.decoder.hidden, job_.element_bytes());
        number("one all-reduce", "{:.4g} us",
               1e6 * network_.seconds(Collective::all_reduce, bytes, {layout_.tensor, 1}));
        links({layout_.tensor, 1});
        repetitions();
        result.source = fmt::format("Shoeybi et al., arXiv:1909.08053, section 3; {}", kAlphaBeta);
        break;
      }
      case Term::context:
        result.formula =
            "a block: (c - 1) transfers of keys and values to the next rank less attention's time beside them; "
            "backward twice the bytes";
        number("c", "{} context ranks", layout_.context);
        links({layout_.context, layout_.tensor});
        repetitions();
        result.source = "Liu et al., arXiv:2310.01889 (ring attention)";
        break;
      case Term::expert:
        result.formula =
            "a block of experts: two all-to-alls forward and two backward of tokens x experts a token x hidden, of the "
            "busier of fast links and network";
        number("e", "{} expert ranks", layout_.expert);
        number("experts a token", "{}", job_.shape.experts.active);
        number("imbalance", "x {} tokens of the busiest rank", job_.expert_imbalance);
        links({layout_.expert, 1});
        repetitions();
        result.source = "DeepSeek-V3, arXiv:2412.19437, section 3.2.2";
        break;
      case Term::gather: {
        const DataExchange exchange(job_, layout_, network_);
        result.formula =
            "each pass of a micro-batch: max(0, links - its work) + overlap_slowdown x min(links, its work) + "
            "rounding; forward "
            "the links gather weights, backward they gather again and reduce gradients, as far as shard says";
        const StageParameters parameters = stage_parameters(job_, layout_, 0);
        if (exchange.gathers_each_pass()) {
          cost("all weights, the first pass", exchange.gather_all(parameters));
          cost("weights in a later pass", exchange.gather_again(parameters));
        }
        if (exchange.reduces_each_pass()) cost("gradients, each backward", exchange.reduce(parameters));
        number("overlap_slowdown", "{}", job_.constants.overlap_slowdown);
        divided();
        result.source = "Zhao et al., arXiv:2304.11277; the slow-down: Galvatron, arXiv:2211.13878, measured";
        break;
      }
      case Term::bubble:
        result.formula =
            "time of the schedule's table, played with every stage's seconds and a transfer between stages, less the "
            "work of the busiest rank";
        number("ideal bubble", "(p - 1) / (v m) = ({} - 1) / ({} x {}) = {:.4g} of ideal time", layout_.pipeline,
               layout_.virtual_stages, micro_batches(job_, layout_), time_.bubble_ideal);
        number("schedule", "{}", name_of(layout_.schedule));
        number("ranks wait", "{:.1f} % of the pipeline's time", 100 * time_.idle_share);
        result.source = "Narayanan et al., arXiv:2104.04473, section 2.2";
        break;
      case Term::gradients:
        result.formula =
            "once a step: the last unit's share of the links, and what of the others the last backward pass does not "
            "hide; rounding; "
            "what comes when backward is over; and with a pipeline an all-reduce of a tied table between its ends";
        cost("of pipeline rank 0", DataExchange(job_, layout_, network_).once_a_step(of_rank(0)));
        number("beside backward", "{}", job_.overlap_gradients ? "yes" : "no: all of it follows");
        number("gradient", "{} bytes an element", job_.gradient_bytes);
        divided();
        result.source = fmt::format("Li et al., arXiv:2006.15704; {}", kAlphaBeta);
        break;
      case Term::optimizer: {
        const double first = of_rank(0).optimizer_elements(job_, layout_),
                     last = of_rank(layout_.pipeline - 1).optimizer_elements(job_, layout_);
        result.formula =
            "bytes x elements / (memory_share x bandwidth) + kernel_gap, of the end of the pipeline with more";
        number("bytes", "{} an element: master, moments, gradient, weight, and the norm's pass",
               job_.constants.optimizer_bytes);
        number("elements", "{:.6g} on pipeline rank {}", std::max(first, last),
               first >= last ? 0 : layout_.pipeline - 1);
        number("kernel_gap", "{} us", job_.constants.kernel_gap_us);
        memory_rate();
        result.source = "Rajbhandari et al., arXiv:1910.02054, for what is divided";
        break;
      }
    }
    return result;
  }

  Explanation share(bool hardware) {
    Explanation& result = result_;
    result.name = hardware ? "hfu" : "mfu";
    result.unit = Explanation::Unit::share;
    result.value = hardware ? time_.hfu : time_.mfu;
    result.formula =
        hardware ? "FLOPs as executed (recomputation counts, masked attention does not) / (step x GPUs x bf16 peak)"
                 : "tokens a step x (6 x parameters that multiply + 12 x layers x heads x head dimension x sequence) / "
                   "(step x GPUs x bf16 peak)";
    if (!hardware) number("FLOPs a token", "{:.4g}", flops_per_token(job_.shape, job_.seq_len, FlopConvention::palm));
    if (hardware) number("FLOPs a step", "{:.4g}", executed_flops(job_, layout_));
    number("tokens a step", "{}", job_.tokens_per_step());
    number("step", "{:.4g} s", time_.seconds);
    number("GPUs", "{} of {} TFLOP/s", job_.gpus, job_.accelerator.bf16_tflops);
    result.source = "Chowdhery et al., arXiv:2204.02311, appendix B";
    return result;
  }

 private:
  template <typename... Args>
  void number(std::string name, fmt::format_string<Args...> format, Args&&... args) {
    result_.numbers.emplace_back(std::move(name), fmt::format(format, std::forward<Args>(args)...));
  }
  void rate() {
    const double peak = peak_rate(job_), rate = matmul_rate(job_);
    number("rate", "matmul_share {:.3f} x peak {:.4g} TFLOP/s = {:.4g}", rate / peak, peak / 1e12, rate / 1e12);
  }
  // fp8 is for products with weights.
  void attention_rate() {
    if (job_.precision != Precision::fp8) return rate();
    const Accelerator& a = job_.accelerator;
    number("rate", "that of fp8 products {:.4g} x bf16 {} / fp8 {} = {:.4g} TFLOP/s", matmul_rate(job_) / 1e12,
           a.bf16_tflops, a.fp8_tflops, matmul_rate(job_) * a.bf16_tflops / a.fp8_tflops / 1e12);
  }
  void cost(std::string name, const ExchangeCost& cost) {
    number(std::move(name), "{:.4g} ms on links{}{}", 1e3 * cost.links,
           cost.rounding > 0 ? fmt::format(", {:.4g} ms of rounding", 1e3 * cost.rounding) : "",
           cost.late > 0 ? fmt::format(", {:.4g} ms when backward is over", 1e3 * cost.late) : "");
  }
  StageParameters of_rank(int64_t rank) const {
    StageParameters parameters;
    for (int64_t chunk = 0; chunk < layout_.virtual_stages; ++chunk)
      parameters += stage_parameters(job_, layout_, chunk * layout_.pipeline + rank);
    return parameters;
  }
  void memory_rate() {
    number("memory", "memory_share {} x bandwidth {} GB/s = {:.4g}", job_.constants.memory_share,
           job_.accelerator.memory_gbs, job_.constants.memory_share * job_.accelerator.memory_gbs);
  }
  void repetitions() {
    number("layers", "{} in {} stages", job_.shape.decoder.layers, layout_.stages());
    number("micro-batches", "{} of {:.0f} tokens on a rank", micro_batches(job_, layout_), rank_tokens(job_, layout_));
  }
  void links(const Group& group) {
    const double here = network_.ranks_a_domain(group);
    number("links", "link_share {} x {} GB/s ({} to one peer) among {:.0f} of {} ranks{}", job_.constants.link_share,
           job_.accelerator.scale_up_gbs,
           job_.accelerator.peer_gbs > 0 ? job_.accelerator.peer_gbs : job_.accelerator.scale_up_gbs, here, group.size,
           here < static_cast<double>(group.size)
               ? fmt::format(", {} GB/s a port beyond", job_.accelerator.scale_out_gbs)
               : "");
  }
  void divided() {
    number("divided", "shard {} among {} ranks, {} cop{}", name_of(layout_.shard), shard_ranks(layout_),
           layout_.replicas, layout_.replicas == 1 ? "y" : "ies");
  }
  double activation_bytes() const {
    return static_cast<double>(job_.element_bytes()) * rank_tokens(job_, layout_) *
           static_cast<double>(job_.shape.decoder.hidden);
  }
  double kernels() const {
    double count = 0;
    for (const Op& op : block_operations(job_, layout_, job_.shape.has_experts())) count += op.kernels;
    return count;
  }

  // Of a block, with experts where there are any, and of the head.
  std::vector<Part> operations(std::initializer_list<OpKind> kinds, Term term) const {
    std::vector<Part> parts;
    for (const auto& ops :
         {block_operations(job_, layout_, job_.shape.has_experts()), head_operations(job_, layout_)}) {
      const std::vector<Passes> times = passes_of_each(job_, layout_, ops);
      for (size_t i = 0; i < ops.size(); ++i) {
        const Op& op = ops[i];
        if (std::ranges::find(kinds, op.kind) == kinds.end()) continue;
        std::string size = op.kind == OpKind::pass ? fmt::format("{:.4g} MB forward", op.forward_bytes / 1e6)
                           : op.kind == OpKind::flash
                               ? fmt::format("{:.4g} GFLOP", op.flops / 1e9)
                               : fmt::format("[{:.0f}, {:.0f}] x [{:.0f}, {:.0f}]", op.m, op.k, op.k, op.n);
        if (op.batch != 1) size += fmt::format(" x {:.4g}", op.batch);
        parts.push_back(
            {std::string(op.name), std::move(size), times[i].forward[index(term)], times[i].backward[index(term)]});
      }
    }
    std::ranges::stable_sort(parts, std::ranges::greater{},
                             [](const Part& part) { return part.forward + part.backward; });
    return parts;
  }

  const Job& job_;
  const Layout& layout_;
  Network network_;
  StepTime time_;
  Explanation result_;
};

/// What a purpose of memory is, and who says so.
std::pair<const char*, const char*> of_purpose(std::string_view purpose) {
  struct Row {
    std::string_view purpose;
    const char *formula, *source;
  };
  static constexpr const char* kZero = "Rajbhandari et al., arXiv:1910.02054, section 3";
  static constexpr const char* kKorthikanti = "Korthikanti et al., arXiv:2205.05198, section 4";
  static constexpr Row kRows[] = {
      {"weights", "bytes of the compute type x parameters on the rank", kZero},
      {"gradients", "bytes of a gradient x parameters on the rank, divided from ZeRO 2 on", kZero},
      {"master weights", "4 bytes x parameters on the rank, divided from ZeRO 1 on", kZero},
      {"moments", "8 bytes x parameters on the rank, divided from ZeRO 1 on", kZero},
      {"gathered weights", "what data ranks divide, while it is used", "Zhao et al., arXiv:2304.11277"},
      {"exchange buffers", "gradients of units before they are divided", "Zhao et al., arXiv:2304.11277"},
      {"second shard", "blocks divided among a few neighbours once more", "Wang et al., arXiv:2306.10209, section 3.2"},
      {"messages", "what travels rounded, sent and received", "Wang et al., arXiv:2306.10209"},
      {"residuals of gradients", "what rounding lost, added to the next step", "Seide et al., Interspeech 2014"},
      {"activations", "what operations keep of a micro-batch x passes in flight of the schedule", kKorthikanti},
      {"recomputed block", "one block with everything kept, less what is kept anyway", kKorthikanti},
      {"logits and loss", "fp32 logits, the logits, and the gradient in both types", "docs/plan.md, Memory"},
      {"fragments", "a share of what comes and goes: sizes are rounded, free pieces do not fit",
       "constant of this project"},
      {"communicators", "a constant for each axis of more than one rank", "Fujii et al., arXiv:2411.06465"},
      {"context and libraries", "a constant: context, code and work spaces", "constant of this project"}};
  for (const Row& row : kRows)
    if (row.purpose == purpose) return {row.formula, row.source};
  throw_internal("no formula of {}", purpose);
}

// As one word of a command line.
std::string in_one_word(std::string_view name) {
  std::string word(name);
  std::ranges::replace(word, ' ', '-');
  return word;
}

}  // namespace

std::vector<std::string> explained(const Job& job, const Layout& layout) {
  std::vector<std::string> names;
  const StepTime time = step_time(job, layout);
  for (size_t i = 0; i < kTerms; ++i)
    if (time.terms[i] > 0) names.emplace_back(name_of(static_cast<Term>(i)));
  names.insert(names.end(), {"mfu", "hfu"});
  const MemoryPlan memory = memory_plan(job, layout);
  for (const MemoryItem& item : memory.most().items)
    names.push_back(item.purpose == "gradients" && std::ranges::find(names, "gradients") != names.end()
                        ? "gradients-in-memory"
                        : in_one_word(item.purpose));
  return names;
}

Explanation explain(const Job& job, const Layout& layout, std::string_view asked) {
  std::string name = in_one_word(asked);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::vector<std::string> names = explained(job, layout);
  if (std::ranges::find(names, name) == names.end()) {
    const std::string near = nearest(name, names);
    throw_input("there is no \"{}\" in this plan; {}there are {}", asked,
                near.empty() ? "" : fmt::format("did you mean {}? ", near), fmt::join(names, ", "));
  }
  TimeExplainer times(job, layout);
  if (name == "mfu" || name == "hfu") return times.share(name == "hfu");
  const StepTime time = step_time(job, layout);
  for (size_t i = 0; i < kTerms; ++i)
    if (name_of(static_cast<Term>(i)) == name && time.terms[i] > 0) return times.of(static_cast<Term>(i));
  const MemoryPlan plan = memory_plan(job, layout);
  const std::string purpose = name == "gradients-in-memory" ? "gradients" : name;
  const auto& items = plan.most().items;
  const auto item =
      std::ranges::find_if(items, [&](const MemoryItem& it) { return in_one_word(it.purpose) == purpose; });
  Explanation result;
  result.name = name;
  result.unit = Explanation::Unit::bytes;
  result.value = item->bytes;
  const auto [formula, source] = of_purpose(item->purpose);
  result.formula = formula;
  result.numbers = {{"here", item->how}, {"pipeline rank", fmt::format("{}, the fullest", plan.most().pipeline_rank)}};
  result.source = source;
  return result;
}

}  // namespace trireme::plan
