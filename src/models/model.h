// What a language model is to the rest of the program: embed, blocks, head, and its parameters in units. A model knows
// nothing of layouts, ranks or optimizers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "describe/model_shape.h"
#include "nn/offload.h"
#include "nn/parameter.h"
#include "ops/attention.h"

namespace trireme::models {

/// Keys and values of every block, for generation.
using Cache = std::vector<ops::KeyValueCache>;

/// What a forward pass knows of its tokens beyond their ids.
struct Pass {
  at::Tensor positions;  ///< [batch * seq] int64: place of each token in its segment
  std::shared_ptr<const std::vector<ops::Segment>> segments;  ///< see ops::AttentionMask; null: each row is one
  ops::Dropout dropout;
  config::Recompute recompute = config::Recompute::none;
  int64_t recompute_blocks = 1;  ///< that full recomputation runs again together, as describe::recompute_group has it
  std::shared_ptr<nn::ActivationStore>
      offload;  ///< where the inputs of blocks wait with full recomputation; null: here
};

/// A pass over whole rows of `batch` x `seq` tokens, the first at position `first`.
Pass make_pass(int64_t batch, int64_t seq, at::Device device, int64_t first = 0);

/// A pass in which tokens [batch, seq] see no token before the last `end_of_text` at or before them: an end-of-text
/// token begins what follows it, as it does for a prompt and for held-out windows. Positions count from there.
Pass make_document_pass(const at::Tensor& tokens, int64_t end_of_text);

/// One of the two for tokens [batch, seq]: by documents when `by_document`.
Pass make_pass(const at::Tensor& tokens, bool by_document, int64_t end_of_text);

/// Who follows a pass through the blocks of a model, so as to have their weights there when they are read.
class PassObserver {
 public:
  virtual ~PassObserver() = default;
  virtual void before_forward() = 0;
  /// In forward, and in backward where the block runs again.
  virtual void before_block(int64_t index) = 0;
  virtual void before_backward() = 0;
  virtual void before_block_backward(int64_t index) = 0;
};

class Model {
 public:
  virtual ~Model() = default;

  const describe::ModelShape& shape() const { return shape_; }
  at::ScalarType dtype() const { return dtype_; }
  /// In the order of the forward pass; backward completes them in about the reverse order.
  const std::vector<nn::Unit>& units() const { return units_; }
  /// All parameters, in the order of units().
  std::vector<nn::Parameter*> parameters() const;
  /// Those that are not frozen, in the same order.
  std::vector<nn::Parameter*> trainable_parameters() const;
  /// Freezes what the patterns match, with * for any characters, before any has memory. Throws InputError with all
  /// faults: a pattern that matches nothing, a part of a stacked tensor (q, k, v; gate, up) without the others, and
  /// nothing left to train.
  void freeze(const std::vector<std::string>& patterns);

  /// Throws InternalError where units and parameters do not fit together: what is in no unit is never given memory.
  void check_units();

  /// Tables and other constants that are not parameters; call once the parameters have memory.
  virtual void prepare(at::Device device) = 0;

  /// tokens [batch, seq] int64 -> hidden states [batch, seq, hidden].
  virtual at::Tensor embed(const at::Tensor& tokens, const Pass& pass) = 0;
  /// Block `index` on x [batch, seq, hidden]. `cache`: this block's cache when generating; then a pass has no segments.
  virtual at::Tensor block(int64_t index, const at::Tensor& x, const Pass& pass, ops::KeyValueCache* cache) = 0;
  /// Final norm: what the output projection multiplies. [batch, seq, hidden].
  virtual at::Tensor final_norm(const at::Tensor& x) = 0;
  /// The output projection [vocab, hidden].
  virtual nn::Parameter& head() = 0;

  Cache make_cache(int64_t batch, int64_t capacity) const;

  /// Told of every pass of forward() below; must outlive the passes. Null: nobody.
  void set_observer(PassObserver* observer) { observer_ = observer; }
  PassObserver* observer() const { return observer_; }

 protected:
  Model(describe::ModelShape shape, at::ScalarType dtype) : shape_(std::move(shape)), dtype_(dtype) {}
  nn::Parameter* add_parameter(std::vector<nn::LogicalTensor> parts, int64_t uses = 1);

  describe::ModelShape shape_;
  at::ScalarType dtype_;
  std::vector<nn::Unit> units_;

 private:
  PassObserver* observer_ = nullptr;
  std::vector<std::unique_ptr<nn::Parameter>> parameters_;
};

/// The model of a shape on the meta device, of a built-in architecture or a registered one (models/register.h).
/// Throws InputError for another.
std::unique_ptr<Model> make_model(const describe::ModelShape& shape, at::ScalarType dtype);

/// Hidden states after the final norm for tokens [batch, seq].
at::Tensor forward(Model& model, const at::Tensor& tokens, const Pass& pass);
/// The same over whole rows, from position 0.
at::Tensor forward(Model& model, const at::Tensor& tokens);
/// Logits [batch, seq, vocab] over whole rows.
at::Tensor logits(Model& model, const at::Tensor& tokens);

struct LossOptions {
  double scale = 1;          ///< 1 / (valid tokens of the whole global batch)
  double z_loss = 0;         ///< see ops::linear_cross_entropy
  double* z_part = nullptr;  ///< receives the z-loss's share of the result
};
/// scale * sum of the cross-entropies of labels [batch, seq] (negative: ignored), and of z-loss.
at::Tensor loss(Model& model, const at::Tensor& tokens, const at::Tensor& labels, const Pass& pass,
                const LossOptions& options);

}  // namespace trireme::models
