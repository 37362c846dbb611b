#include "nn/parameter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numeric>

#include "base/random.h"
#include "ops/dispatch.h"

namespace trireme::nn {
namespace {

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// `a.q.weight`, `a.k.weight` -> `a.q+k.weight`: what the names share at both ends, and the middles.
std::string stacked_name(const std::vector<LogicalTensor>& parts) {
  if (parts.size() == 1) return parts[0].name;
  const std::string& first = parts[0].name;
  size_t head = first.size(), tail = first.size();
  for (const LogicalTensor& part : parts) {
    size_t same = 0;
    while (same < std::min(head, part.name.size()) && part.name[same] == first[same]) ++same;
    head = same;
    same = 0;
    while (same < std::min(tail, part.name.size()) &&
           part.name[part.name.size() - 1 - same] == first[first.size() - 1 - same])
      ++same;
    tail = same;
  }
  std::string name = first.substr(0, head);
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t length = parts[i].name.size();
    if (i > 0) name += '+';
    if (length > head + tail) name += parts[i].name.substr(head, length - head - tail);
  }
  return name + first.substr(first.size() - tail);
}

}  // namespace

int64_t LogicalTensor::elements() const { return product(shape); }
int64_t Fragment::elements() const { return product(size); }

Parameter::Parameter(std::vector<LogicalTensor> parts, at::ScalarType dtype, int64_t uses)
    : parts_(std::move(parts)), dtype_(dtype), uses_(uses) {
  TRIREME_CHECK(!parts_.empty(), "a parameter without parts");
  for (const LogicalTensor& part : parts_) TRIREME_CHECK(!part.shape.empty(), "{} has no dimension", part.name);
  name_ = stacked_name(parts_);
  shape_ = parts_[0].shape;
  for (size_t i = 1; i < parts_.size(); ++i) {
    TRIREME_CHECK(std::equal(shape_.begin() + 1, shape_.end(), parts_[i].shape.begin() + 1, parts_[i].shape.end()),
                  "the parts of {} differ in more than dimension 0", name_);
    shape_[0] += parts_[i].shape[0];
  }
  rows_ = {0, shape_[0]};
  value_ = at::empty(shape_, at::TensorOptions(dtype_).device(at::kMeta));
}

int64_t Parameter::elements() const { return product(shape_); }

std::vector<Fragment> Parameter::fragments() const {
  std::vector<Fragment> result;
  int64_t first = 0;  // row of the physical tensor at which the part starts
  for (const LogicalTensor& part : parts_) {
    const Rows here = {std::max(rows_.begin, first), std::min(rows_.end, first + part.shape[0])};
    if (here.size() > 0 && row_elements() > 0) {
      Fragment fragment{&part, std::vector<int64_t>(part.shape.size(), 0), part.shape,
                        (here.begin - rows_.begin) * row_elements()};
      fragment.offset[0] = here.begin - first;
      fragment.size[0] = here.size();
      result.push_back(std::move(fragment));
    }
    first += part.shape[0];
  }
  return result;
}

void Parameter::bind(Memory memory) {
  const auto statistics = ops::compute_type(dtype_);
  std::vector<int64_t> held = shape_;
  held[0] = memory.rows.size();
  const auto check = [&](const char* what, const at::Tensor& tensor, at::IntArrayRef shape, at::ScalarType type) {
    TRIREME_CHECK(tensor.sizes() == shape && tensor.scalar_type() == type, "{} of {} is {} {}", what, name_,
                  c10::str(tensor.sizes()), c10::toString(tensor.scalar_type()));
  };
  TRIREME_CHECK(0 <= memory.rows.begin && memory.rows.begin <= memory.rows.end && memory.rows.end <= shape_[0],
                "rows [{}, {}) of {}", memory.rows.begin, memory.rows.end, name_);
  check("the value", memory.value, shape_, dtype_);
  check("the master", memory.master, held, statistics);
  TRIREME_CHECK(trainable_ || !(memory.gradient.defined() || memory.received.defined()),
                "a gradient of {}, which is frozen", name_);
  if (trainable_) {
    const bool narrow = memory.gradient.scalar_type() == dtype_;
    check("the gradient", memory.gradient, held, narrow ? dtype_ : statistics);
  }
  if (memory.copy.defined()) check("the copy", memory.copy, held, dtype_);
  if (memory.received.defined()) check("the received gradient", memory.received, shape_, memory.gradient.scalar_type());
  value_ = std::move(memory.value);
  rows_ = memory.rows;
  master_ = std::move(memory.master);
  copy_ = std::move(memory.copy);
  gradient_ = std::move(memory.gradient);
  received_ = std::move(memory.received);
  owner_ = memory.owner;
}

void Parameter::bind(const at::Tensor& value, const at::Tensor& master, const at::Tensor& gradient) {
  bind({.value = value,
        .rows = {0, shape_[0]},
        .master = master,
        .copy = value.is_same(master) ? at::Tensor() : value,
        .gradient = gradient,
        .received = gradient});
}

ops::Weight Parameter::weight() {
  if (owner_ != nullptr) owner_->before_use(*this);
  return {value_, at::GradMode::is_enabled() && gradient_.defined() ? this : nullptr, name_};
}

void Parameter::expect_gradients(int64_t micro_batches, std::function<void(Parameter&)> on_complete) {
  expected_ = uses_ * micro_batches;
  begun_ = arrived_ = 0;
  on_complete_ = std::move(on_complete);
}

ops::GradientTarget Parameter::target() {
  TRIREME_CHECK(begun_ < expected_, "gradient {} of {} arrived, {} were expected", begun_ + 1, name_, expected_);
  if (begun_ == 0 && owner_ != nullptr) owner_->before_gradient(*this);
  return {received_, begun_++ > 0};
}

void Parameter::delivered() {
  if (++arrived_ != expected_ || !on_complete_) return;
  const std::function<void(Parameter&)> call = on_complete_;  // which may set another
  call(*this);
}

void initialize(const LogicalTensor& logical, int64_t first, const at::Tensor& values, uint64_t seed) {
  if (logical.init.kind != Init::Kind::truncated_normal) {
    values.fill_(logical.init.kind == Init::Kind::ones ? 1 : 0);
    return;
  }
  const random::Key key = random::make_key(seed, "init/" + logical.name);
  const double deviation = logical.init.standard_deviation;
  const at::Tensor host = ops::on_cpu(values) ? values : at::empty_like(values, values.options().device(at::kCPU));
  ops::dispatch(host.scalar_type(), [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, ops::Compute<T>>) {
      T* to = ops::data<T>(host);
      ops::parallel_rows(host.numel(), 100, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          to[i] = static_cast<T>(deviation * random::truncated_normal(key, static_cast<uint64_t>(first + i), 3.0));
      });
    } else {
      throw_internal("initial values are drawn in fp32 or fp64");
    }
  });
  if (!host.is_same(values)) values.copy_(host);
}

}  // namespace trireme::nn
