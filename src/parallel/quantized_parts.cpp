#include "parallel/quantized_parts.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace trireme::parallel {

QuantizedParts::QuantizedParts(const ops::QuantizedFormat& format, const std::vector<int64_t>& elements, int64_t ranks)
    : format_(format),
      tensors_(elements.size() / static_cast<size_t>(ranks)),
      ranks_(ranks),
      elements_(elements),
      first_(elements.size()),
      packed_at_(elements.size()),
      bytes_(static_cast<size_t>(ranks)) {
  for (size_t t = 0; t < tensors_; ++t) {
    int64_t first = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      const size_t at = index(t, r);
      first_[at] = first;
      first += elements_[at];
      packed_at_[at] = bytes_[static_cast<size_t>(r)];
      bytes_[static_cast<size_t>(r)] += format.packed_bytes(elements_[at]);
    }
  }
  for (const int64_t bytes : bytes_) {
    bytes_at_.push_back(bytes_of_all_);
    bytes_of_all_ += bytes;
  }
}

QuantizedParts QuantizedParts::of_unit(const ops::QuantizedFormat& format, const Unit& unit, int64_t ranks) {
  std::vector<int64_t> elements = unit.rank_rows;
  for (size_t i = 0; i < elements.size(); ++i)
    elements[i] *= unit.parameters[i / static_cast<size_t>(ranks)]->row_elements();
  return {format, elements, ranks};
}

int64_t QuantizedParts::elements_in(size_t t) const {
  const size_t last = index(t, ranks_ - 1);
  return first_[last] + elements_[last];
}

at::Tensor QuantizedParts::elements_of(const at::Tensor& whole, size_t t, int64_t rank) const {
  const size_t at = index(t, rank);
  return whole.view({-1}).narrow(0, first_[at], elements_[at]);
}

at::Tensor QuantizedParts::packed(const at::Tensor& bytes_of_rank, size_t t, int64_t rank) const {
  const size_t at = index(t, rank);
  return bytes_of_rank.narrow(0, packed_at_[at], format_.packed_bytes(elements_[at]));
}

at::Tensor QuantizedParts::bytes_in(const at::Tensor& bytes_of_all, int64_t rank) const {
  const auto r = static_cast<size_t>(rank);
  return bytes_of_all.narrow(0, bytes_at_[r], bytes_[r]);
}

comm::Work QuantizedGather::post(at::TensorList own, const at::Tensor& send, const at::Tensor& received,
                                 at::TensorList residuals) const {
  const at::Tensor bytes = send.narrow(0, 0, own_bytes());
  for (size_t t = 0; t < own.size(); ++t)
    ops::quantize(parts_.format(), own[t], parts_.packed(bytes, t, ranks_.rank()),
                  residuals.empty() ? at::Tensor() : residuals[t]);
  return ranks_.all_gather_v_async(received.narrow(0, 0, parts_.bytes()), bytes, parts_.rank_bytes());
}

void QuantizedGather::unpack(const at::Tensor& received, at::TensorList whole) const {
  for (int64_t r = 0; r < parts_.ranks(); ++r) {
    const at::Tensor bytes = parts_.bytes_in(received, r);
    for (size_t t = 0; t < whole.size(); ++t)
      ops::dequantize(parts_.format(), parts_.packed(bytes, t, r), parts_.elements_of(whole[t], t, r));
  }
}

}  // namespace trireme::parallel
