#include "parallel/unit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>

namespace trireme::parallel {
namespace {

constexpr int64_t kAlignElements = 64;

// N of "blocks.N"; -1 for another name.
int64_t block_of(std::string_view name) {
  constexpr std::string_view stem = "blocks.";
  if (!name.starts_with(stem)) return -1;
  int64_t index = -1;
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + stem.size(), end, index);
  return error == std::errc() && last == end ? index : -1;
}

}  // namespace

int64_t Packing::add(int64_t elements) {
  const int64_t start = elements_;
  elements_ += (elements + kAlignElements - 1) / kAlignElements * kAlignElements;
  return start;
}

Unit::Unit(const nn::Unit& unit, int64_t rank, int64_t ranks)
    : name(unit.name), block(block_of(unit.name)), parameters(unit.parameters) {
  Packing all;
  std::vector<Packing> parts(static_cast<size_t>(ranks));
  for (const nn::Parameter* parameter : parameters) {
    at.push_back(all.add(parameter->elements()));
    for (int64_t r = 0; r < ranks; ++r) {
      const nn::Rows theirs = nn::rows_of_rank(parameter->shape()[0], r, ranks);
      rank_rows.push_back(theirs.size());
      const int64_t start = parts[static_cast<size_t>(r)].add(theirs.size() * parameter->row_elements());
      if (r != rank) continue;
      rows.push_back(theirs);
      held_at.push_back(start);
    }
  }
  elements = all.elements();
  for (const Packing& part : parts) held = std::max(held, part.elements());
}

std::vector<at::Tensor> Unit::whole(const at::Tensor& flat) const {
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < parameters.size(); ++i)
    result.push_back(flat.narrow(0, at[i], parameters[i]->elements()).view(parameters[i]->shape()));
  return result;
}

std::vector<at::Tensor> Unit::shards(const at::Tensor& flat) const {
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::vector<int64_t> shape = parameters[i]->shape();
    shape[0] = rows[i].size();
    result.push_back(flat.narrow(0, held_at[i], rows[i].size() * parameters[i]->row_elements()).view(shape));
  }
  return result;
}

std::vector<at::Tensor> Unit::shards(const std::function<at::Tensor(at::IntArrayRef)>& memory) const {
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::vector<int64_t> shape = parameters[i]->shape();
    shape[0] = rows[i].size();
    result.push_back(memory(shape));
  }
  return result;
}

std::vector<at::Tensor> Unit::own_rows(const std::vector<at::Tensor>& whole) const {
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < whole.size(); ++i) result.push_back(whole[i].narrow(0, rows[i].begin, rows[i].size()));
  return result;
}

SharedTensor::SharedTensor(comm::Communicator& ranks, const std::string& name, int64_t elements, at::ScalarType dtype,
                           at::Device device, memory::Purpose purpose, comm::Sharing sharing) {
  const memory::PurposeScope scope(purpose);
  if (!device.is_cpu()) {
    tensor_ = at::zeros({elements}, at::TensorOptions(dtype).device(device));
    return;
  }
  tensor_ = ranks.shared_empty(name, {elements}, dtype, sharing);
  if (ranks.size() == 1) return;  // an ordinary tensor, which the allocator has counted
  const auto bytes = static_cast<int64_t>(tensor_.nbytes());
  const bool one_for_all = sharing == comm::Sharing::once && ranks.shares_memory();
  held_ = memory::HeldElsewhere(purpose, one_for_all ? bytes / ranks.size() : bytes);
}

}  // namespace trireme::parallel
