// Held-out loss and bits per byte.
#pragma once

#include <functional>
#include <optional>

#include "comm/communicator.h"
#include "data/dataset.h"
#include "models/model.h"

namespace trireme::train {

struct Evaluation {
  double loss = 0;           ///< mean over all labels, in nats
  double bits_per_byte = 0;  ///< sum of losses / ln 2 / bytes of text
  int64_t tokens = 0, bytes = 0;
  double seconds = 0;
};

/// Batches between two questions whether to stop: every rank has as many, so all ask at the same ones.
inline constexpr int64_t kBatchesToStop = 8;

struct EvaluationOptions {
  int64_t seq_len = 0;
  int64_t micro_batch_size = 1;
  int64_t max_tokens;                   ///< 0: the whole set
  bool document_mask;                   ///< see models::make_document_pass
  bool collective = false;              ///< forward passes are: ranks without tokens make them too
  std::function<bool()> wants_to_stop;  ///< asked now and then; one rank's wish is everybody's. None: never
};

/// Collective over `data`, whose ranks share the windows (see data/evaluation_windows.h). Nothing when a rank wanted to
/// stop before the end.
std::optional<Evaluation> evaluate(models::Model& model, std::shared_ptr<const data::Dataset> dataset,
                                   comm::Communicator& data, const EvaluationOptions& options);

}  // namespace trireme::train
