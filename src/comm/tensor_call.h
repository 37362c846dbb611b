// Private to comm: from tensors to a call of the core, with every check that a tensor can fail, but for whether the
// group reaches the device that they are on (Call::on_device).
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/call.h"

namespace trireme::comm {

/// One tensor that is input and output: all_reduce, reduce, broadcast; and the one of a message or a barrier-free call.
Call in_place_call(Kind kind, const at::Tensor& tensor);
/// Several in one call.
Call in_place_call(Kind kind, at::TensorList tensors);
/// As many elements out as in.
Call pair_call(Kind kind, const at::Tensor& output, const at::Tensor& input);
/// Equal blocks: the larger side has `ranks` times as many elements; for all_to_all both are a multiple of it. The
/// output of gather and the input of scatter may be undefined where `is_root` is false.
Call blocks_call(Kind kind, const at::Tensor& output, const at::Tensor& input, int64_t ranks, bool is_root = true);
Call blocks_call(Kind kind, at::TensorList outputs, at::TensorList inputs, int64_t ranks);
/// Unequal blocks of rows (dimension 0) of all_gather and reduce_scatter: `rows` is [tensors * ranks]. Outputs of
/// an all_gather may be bfloat16 or half where the inputs are float: input_dtype says so.
Call rows_call(Kind kind, at::TensorList outputs, at::TensorList inputs, at::IntArrayRef rows, int64_t rank,
               int64_t ranks);
/// all_to_all of unequal blocks of rows.
Call exchange_call(const at::Tensor& output, const at::Tensor& input, at::IntArrayRef output_rows,
                   at::IntArrayRef input_rows, int64_t ranks);

}  // namespace trireme::comm
