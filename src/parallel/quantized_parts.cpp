#include "parallel/quantized_parts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"

namespace trireme::parallel {

QuantizedParts::QuantizedParts(const ops::QuantizedFormat& format, std::vector<bool> exact,
                               std::vector<int64_t> elements, int64_t ranks)
    : format_(format),
      exact_(std::move(exact)),
      ranks_(ranks),
      elements_(std::move(elements)),
      first_(elements_.size()),
      packed_at_(elements_.size()),
      bytes_(static_cast<size_t>(ranks)) {
  TRIREME_CHECK(elements_.size() == exact_.size() * static_cast<size_t>(ranks), "{} counts for {} tensors of {} ranks",
                elements_.size(), exact_.size(), ranks);
  for (size_t t = 0; t < tensors(); ++t) {
    int64_t first = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      const size_t at = index(t, r);
      first_[at] = first;
      first += elements_[at];
      packed_at_[at] = bytes_[static_cast<size_t>(r)];
      bytes_[static_cast<size_t>(r)] += packed_bytes(t, elements_[at]);
    }
  }
  for (const int64_t bytes : bytes_) {
    bytes_at_.push_back(bytes_of_all_);
    bytes_of_all_ += bytes;
  }
}

QuantizedParts QuantizedParts::of_unit(const ops::QuantizedFormat& format, const Unit& unit, int64_t ranks) {
  std::vector<int64_t> elements = unit.rank_rows;
  std::vector<bool> exact;
  for (size_t i = 0; i < elements.size(); ++i)
    elements[i] *= unit.parameters[i / static_cast<size_t>(ranks)]->row_elements();
  for (const nn::Parameter* parameter : unit.parameters) exact.push_back(parameter->shape().size() == 1);
  return {format, std::move(exact), std::move(elements), ranks};
}

int64_t QuantizedParts::elements_in(size_t t) const {
  const size_t last = index(t, ranks_ - 1);
  return first_[last] + elements_[last];
}

int64_t QuantizedParts::packed_bytes(size_t t, int64_t elements) const {
  return exact_[t] ? elements * static_cast<int64_t>(sizeof(float)) : format_.packed_bytes(elements);
}

at::Tensor QuantizedParts::elements_of(const at::Tensor& whole, size_t t, int64_t rank) const {
  const size_t at = index(t, rank);
  return whole.view({-1}).narrow(0, first_[at], elements_[at]);
}

at::Tensor QuantizedParts::packed(size_t t, int64_t rank, const at::Tensor& bytes_of_rank) const {
  const size_t at = index(t, rank);
  return bytes_of_rank.narrow(0, packed_at_[at], packed_bytes(t, elements_[at]));
}

at::Tensor QuantizedParts::bytes_in(const at::Tensor& bytes_of_all, int64_t rank) const {
  const auto r = static_cast<size_t>(rank);
  return bytes_of_all.narrow(0, bytes_at_[r], bytes_[r]);
}

void QuantizedParts::pack(size_t t, int64_t rank, const at::Tensor& part, const at::Tensor& bytes_of_rank,
                          const at::Tensor& residual) const {
  const at::NoGradGuard no_grad;
  const at::Tensor to = packed(t, rank, bytes_of_rank);
  if (exact_[t])
    to.view(at::kFloat).copy_(part.reshape({-1}));
  else
    ops::quantize(format_, part, to, residual);
}

void QuantizedParts::unpack(size_t t, int64_t rank, const at::Tensor& bytes_of_rank, const at::Tensor& part) const {
  const at::NoGradGuard no_grad;
  const at::Tensor from = packed(t, rank, bytes_of_rank);
  if (exact_[t])
    part.copy_(from.view(at::kFloat).view(part.sizes()));
  else
    ops::dequantize(format_, from, part);
}

void QuantizedParts::add(size_t t, int64_t rank, at::TensorList bytes_of_rank, const at::Tensor& part) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> from;
  for (const at::Tensor& bytes : bytes_of_rank) from.push_back(packed(t, rank, bytes));
  if (exact_[t])
    for (const at::Tensor& one : from) part.add_(one.view(at::kFloat).view(part.sizes()));
  else
    ops::sum_dequantized(format_, from, part, /*accumulate=*/true);
}

comm::Work QuantizedGather::post(at::TensorList own, const at::Tensor& send, const at::Tensor& received,
                                 at::TensorList residuals) const {
  const at::Tensor bytes = send.narrow(0, 0, own_bytes());
  for (size_t t = 0; t < own.size(); ++t)
    parts_.pack(t, ranks_.rank(), own[t], bytes, residuals.empty() ? at::Tensor() : residuals[t]);
  return ranks_.all_gather_v_async(received.narrow(0, 0, parts_.bytes()), bytes, parts_.rank_bytes());
}

void QuantizedGather::unpack(const at::Tensor& received, at::TensorList whole) const {
  for (int64_t r = 0; r < parts_.ranks(); ++r) {
    const at::Tensor bytes = parts_.bytes_in(received, r);
    for (size_t t = 0; t < whole.size(); ++t) parts_.unpack(t, r, bytes, parts_.elements_of(whole[t], t, r));
  }
}

}  // namespace trireme::parallel
