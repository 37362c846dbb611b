#include "models/model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "describe/architecture.h"
#include "describe/kept_activations.h"
#include "models/gpt.h"
#include "models/llama.h"
#include "models/register.h"
#include "nn/recompute.h"
#include "ops/dispatch.h"
#include "ops/function.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"

namespace trireme::models {

std::vector<nn::Parameter*> Model::parameters() const {
  std::vector<nn::Parameter*> result;
  for (const nn::Unit& unit : units_) result.insert(result.end(), unit.parameters.begin(), unit.parameters.end());
  return result;
}

std::vector<nn::Parameter*> Model::trainable_parameters() const {
  std::vector<nn::Parameter*> result = parameters();
  std::erase_if(result, [](const nn::Parameter* parameter) { return !parameter->trainable(); });
  return result;
}

void Model::freeze(const std::vector<std::string>& patterns) {
  std::vector<std::string> faults;
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (const nn::Parameter* parameter : parameters())
      for (const nn::LogicalTensor& part : parameter->parts()) any = any || matches(pattern, part.name);
    if (!any)
      faults.push_back(fmt::format("train.frozen: \"{}\" matches no weight; some are {} and {}", pattern,
                                   parameters().front()->parts()[0].name, parameters().back()->parts()[0].name));
  }
  for (nn::Parameter* parameter : parameters()) {
    std::vector<std::string> frozen, free;
    for (const nn::LogicalTensor& part : parameter->parts()) {
      const bool any = std::any_of(patterns.begin(), patterns.end(),
                                   [&](const std::string& pattern) { return matches(pattern, part.name); });
      (any ? frozen : free).push_back(part.name);
    }
    if (!frozen.empty() && !free.empty())
      faults.push_back(fmt::format("train.frozen has {} but not {}: they are one matrix here, and freeze together",
                                   fmt::join(frozen, ", "), fmt::join(free, ", ")));
    if (!frozen.empty()) parameter->freeze();
  }
  if (faults.empty() && trainable_parameters().empty())
    faults.emplace_back("train.frozen leaves nothing to train; list fewer weights");
  if (!faults.empty()) throw InputError(faults);
}

nn::Parameter* Model::add_parameter(std::vector<nn::LogicalTensor> parts, int64_t uses) {
  parameters_.push_back(std::make_unique<nn::Parameter>(std::move(parts), dtype_, uses));
  return parameters_.back().get();
}

void Model::check_units() {
  TRIREME_CHECK(shape_.layers >= 0 && !units_.empty(), "a model of {} has no units", shape_.architecture);
  std::set<std::string> names;
  for (const nn::Parameter* parameter : parameters()) {
    for (const nn::LogicalTensor& part : parameter->parts())
      TRIREME_CHECK(names.insert(part.name).second, "{}: two tensors in its units are called {}", shape_.architecture,
                    part.name);
  }
  for (const auto& parameter : parameters_) {
    TRIREME_CHECK(names.contains(parameter->parts().front().name),
                  "{}: {} is in no unit, so nobody would give it memory; add it to one", shape_.architecture,
                  parameter->name());
  }
  const std::vector<int64_t> wanted = {shape_.vocab, shape_.hidden};
  TRIREME_CHECK(head().shape() == wanted, "{}: head() is [{}], expected [vocab, hidden] = [{}]", shape_.architecture,
                fmt::join(head().shape(), ", "), fmt::join(wanted, ", "));
}

Cache Model::make_cache(int64_t batch, int64_t capacity) const {
  const auto options = parameters_.front()->value().options();
  Cache cache;
  for (int64_t i = 0; i < shape_.layers; ++i)
    cache.push_back({at::zeros({batch, shape_.kv_heads, capacity, shape_.head_dim}, options),
                     at::zeros({batch, shape_.kv_heads, capacity, shape_.head_dim}, options), 0});
  return cache;
}

std::unique_ptr<Model> make_model(const describe::ModelShape& shape, at::ScalarType dtype) {
  if (shape.architecture == "llama") return std::make_unique<Llama>(shape, dtype);
  if (shape.is_gpt()) return std::make_unique<Gpt>(shape, dtype);
  if (const describe::Architecture* own = describe::registered_architecture(shape.architecture)) {
    std::unique_ptr<Model> model = std::any_cast<const Factory&>(own->make)(shape, dtype);
    model->check_units();
    return model;
  }
  throw_input("model.architecture = \"{}\" is not known to this program; it knows {}", shape.architecture,
              fmt::join(describe::architecture_names(), ", "));
}

namespace {

at::Tensor make_positions(int64_t batch, int64_t seq, int64_t first, at::Device device) {
  return at::arange(first, first + seq, at::TensorOptions(at::kLong).device(device)).repeat({batch});
}

}  // namespace

Pass make_pass(int64_t batch, int64_t seq, at::Device device, int64_t first) {
  Pass pass;
  pass.positions = make_positions(batch, seq, first, device);
  return pass;
}

Pass make_document_pass(const at::Tensor& tokens, int64_t end_of_text) {
  const int64_t batch = tokens.size(0), seq = tokens.size(1);
  const at::Tensor host = tokens.cpu().contiguous(), positions = at::empty({batch, seq}, at::kLong);
  const int64_t* id = host.const_data_ptr<int64_t>();
  int64_t* position = positions.mutable_data_ptr<int64_t>();
  auto segments = std::make_shared<std::vector<ops::Segment>>();
  for (int64_t row = 0; row < batch; ++row) {
    for (int64_t i = 0; i < seq; ++i) {
      if (i == 0 || id[row * seq + i] == end_of_text) segments->push_back({row, i, 0});
      position[row * seq + i] = segments->back().length++;
    }
  }
  Pass pass;
  pass.positions = positions.reshape({-1}).to(tokens.device());
  pass.segments = std::move(segments);
  return pass;
}

Pass make_pass(const at::Tensor& tokens, bool by_document, int64_t end_of_text) {
  return by_document ? make_document_pass(tokens, end_of_text)
                     : make_pass(tokens.size(0), tokens.size(1), tokens.device());
}

namespace {

// The same tensor; its backward tells the observer that that of a block, or of the whole, begins.
struct Border : torch::autograd::Function<Border> {
  static at::Tensor forward(ops::Context* context, const at::Tensor& x, int64_t observer, int64_t block) {
    context->saved_data["observer"] = observer;
    context->saved_data["block"] = block;
    return x;
  }
  static ops::Gradients backward(ops::Context* context, ops::Gradients gradients) {
    auto* observer = reinterpret_cast<PassObserver*>(context->saved_data["observer"].toInt());
    const int64_t block = context->saved_data["block"].toInt();
    if (block < 0)
      observer->before_backward();
    else
      observer->before_block_backward(block);
    return {gradients[0], {}, {}};
  }
};

// Of a block's output, or (-1) of the last one.
at::Tensor border(const Model& model, const at::Tensor& x, int64_t block) {
  if (model.observer() == nullptr || !at::GradMode::is_enabled()) return x;
  return Border::apply(x, reinterpret_cast<int64_t>(model.observer()), block);
}

at::Tensor run_block(Model& model, int64_t index, const at::Tensor& x, const Pass& pass) {
  if (model.observer() != nullptr) model.observer()->before_block(index);
  return border(model, model.block(index, x, pass, nullptr), index);
}

}  // namespace

at::Tensor forward(Model& model, const at::Tensor& tokens, const Pass& pass) {
  const bool full = pass.recompute == config::Recompute::full && at::GradMode::is_enabled();
  if (model.observer() != nullptr) model.observer()->before_forward();
  at::Tensor x = model.embed(tokens, pass);
  const int64_t layers = model.shape().layers;
  const int64_t group = full ? describe::recompute_group(layers, pass.recompute_blocks) : 1;
  for (int64_t first = 0; first < layers; first += group) {
    const auto piece = [&model, first, last = std::min(first + group, layers), pass](const at::Tensor& input) {
      at::Tensor output = input;
      for (int64_t i = first; i < last; ++i) output = run_block(model, i, output, pass);
      return output;
    };
    x = full ? nn::recompute(piece, x, pass.offload) : piece(x);
  }
  return border(model, model.final_norm(x), -1);
}

at::Tensor forward(Model& model, const at::Tensor& tokens) {
  return forward(model, tokens, make_pass(tokens.size(0), tokens.size(1), tokens.device()));
}

at::Tensor logits(Model& model, const at::Tensor& tokens) {
  return ops::soft_capped(ops::linear(forward(model, tokens), model.head().weight()), model.shape().logit_softcap);
}

at::Tensor loss(Model& model, const at::Tensor& tokens, const at::Tensor& labels, const Pass& pass,
                const LossOptions& options) {
  const at::Tensor hidden = forward(model, tokens, pass);
  return ops::linear_cross_entropy(hidden.reshape({-1, hidden.size(-1)}), model.head().weight(), labels.reshape({-1}),
                                   options.scale, options.z_loss, options.z_part, model.shape().logit_softcap);
}

}  // namespace trireme::models
