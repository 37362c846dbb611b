// Held-out loss and bits per byte.
#pragma once

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

/// Collective over `data`, whose ranks share the windows. `max_tokens` <= 0: the whole set. See
/// data/evaluation_windows.h.
Evaluation evaluate(models::Model& model, std::shared_ptr<const data::Dataset> dataset, comm::Communicator& data,
                    int64_t seq_len, int64_t micro_batch_size, int64_t max_tokens);

}  // namespace trireme::train
