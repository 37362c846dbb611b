// What a language model is to the rest of the program: embed, blocks, head, and its parameters in units. A model knows
// nothing of layouts, ranks or optimizers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "describe/model_shape.h"
#include "nn/parameter.h"
#include "ops/attention.h"

namespace trireme::models {

/// Keys and values of every block, for generation.
using Cache = std::vector<ops::KeyValueCache>;

class Model {
 public:
  virtual ~Model() = default;

  const describe::ModelShape& shape() const { return shape_; }
  at::ScalarType dtype() const { return dtype_; }
  /// In the order of the forward pass; backward completes them in about the reverse order.
  const std::vector<nn::Unit>& units() const { return units_; }
  /// All parameters, in the order of units().
  std::vector<nn::Parameter*> parameters() const;

  /// Throws InternalError where units and parameters do not fit together: what is in no unit is never given memory.
  void check_units();

  /// Tables and other constants that are not parameters; call once the parameters have memory.
  virtual void prepare(at::Device device) = 0;

  /// tokens [batch, seq] int64 -> hidden states [batch, seq, hidden].
  virtual at::Tensor embed(const at::Tensor& tokens) = 0;
  /// Block `index` on x [batch, seq, hidden]. positions [batch * seq] int64. `cache`: this block's cache when
  /// generating.
  virtual at::Tensor block(int64_t index, const at::Tensor& x, const at::Tensor& positions,
                           ops::KeyValueCache* cache) = 0;
  /// Final norm: what the output projection multiplies. [batch, seq, hidden].
  virtual at::Tensor final_norm(const at::Tensor& x) = 0;
  /// The output projection [vocab, hidden].
  virtual nn::Parameter& head() = 0;

  Cache make_cache(int64_t batch, int64_t capacity) const;

 protected:
  Model(describe::ModelShape shape, at::ScalarType dtype) : shape_(std::move(shape)), dtype_(dtype) {}
  nn::Parameter* add_parameter(std::vector<nn::LogicalTensor> parts, int64_t uses = 1);

  describe::ModelShape shape_;
  at::ScalarType dtype_;
  std::vector<nn::Unit> units_;

 private:
  std::vector<std::unique_ptr<nn::Parameter>> parameters_;
};

/// The model of a shape on the meta device, of a built-in architecture or a registered one (models/register.h).
/// Throws InputError for another.
std::unique_ptr<Model> make_model(const describe::ModelShape& shape, at::ScalarType dtype);

/// positions 0..seq-1 for each of `batch` rows: [batch * seq].
at::Tensor make_positions(int64_t batch, int64_t seq, int64_t first, at::Device device);

/// Hidden states after the final norm for tokens [batch, seq]. With `recompute`, each block keeps only its input.
at::Tensor forward(Model& model, const at::Tensor& tokens, bool recompute = false);
/// Logits [batch, seq, vocab].
at::Tensor logits(Model& model, const at::Tensor& tokens);
/// scale * sum of the cross-entropies of labels [batch, seq] (negative: ignored).
at::Tensor loss(Model& model, const at::Tensor& tokens, const at::Tensor& labels, double scale, bool recompute = false);

}  // namespace trireme::models
