// What the trainer's own operations keep from forward for backward, tensor by tensor: the one description that
// recomputation follows, the start-up report adds up, and the tests hold the allocator to.
//
// Terms as in Korthikanti et al., "Reducing activation recomputation", arXiv:2205.05198, section 4.1, for these
// operations: attention is fused and keeps no scores, gate and up are one product, the logits never exist as a whole.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "describe/model_shape.h"
#include "describe/recompute.h"

namespace trireme::describe {

/// A tensor, by what keeps it. A tensor that two operations keep stands once.
struct KeptTensor {
  std::string_view operation;
  int64_t elements = 0;     ///< a token, in the type of activations
  int64_t statistics = 0;   ///< a token, in the compute type: of rows, for norms and softmax
  int64_t bits = 0;         ///< a token: of a mask, each sample's rounded up to words of 4 bytes
  bool made_again = false;  ///< by selective recomputation: the output of a norm or an activation
};

/// Bytes of a number.
struct ActivationTypes {
  int64_t element = 2;  ///< of activations
  int64_t compute = 4;  ///< of statistics (ops::compute_type)
};

/// Of one block of a built-in architecture. With dropout attention writes its scores out, so the sequence's length
/// counts (and a mask of seq_len^2 bytes that is not listed).
std::vector<KeptTensor> kept_in_block(const ModelShape& shape, int64_t seq_len, ActivationTypes types);

/// Blocks that full recomputation runs again together: `setting` of them, or for 0 the square root of all, rounded up
/// (Chen et al., arXiv:1604.06174, section 4).
int64_t recompute_group(int64_t layers, int64_t setting);

struct KeptOptions {
  int64_t tokens = 0;   ///< of a micro-batch
  int64_t seq_len = 0;  ///< tokens
  ActivationTypes types;
  Recompute recompute = Recompute::none;
  int64_t group = 1;            ///< with full: recompute_group()
  int64_t product_threads = 0;  ///< of our own matrix product (matmul_plan.h), whose scratch counts; 0: a library's
  bool offload = false;         ///< with full: the inputs of groups wait elsewhere
};

/// Two moments, one of which is the step's fullest: the loss holds its logits in the first.
struct KeptBytes {
  int64_t after_forward = 0;  ///< when backward begins
  int64_t in_backward = 0;    ///< of the last block's feed-forward, with what full recomputation has made again
  int64_t workspace = 0;      ///< gradients of activations, and scratch of a product, at that moment
};
/// Between the embedding and the loss, for one micro-batch.
KeptBytes kept_activations(const ModelShape& shape, const KeptOptions& options);

}  // namespace trireme::describe
