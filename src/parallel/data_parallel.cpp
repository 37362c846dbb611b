#include "parallel/data_parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>

#include "base/error.h"
#include "memory/purpose.h"
#include "ops/dispatch.h"

namespace trireme::parallel {
namespace {

// Each parameter starts on a cache line of its own.
constexpr int64_t kAlignElements = 64;

int64_t aligned(int64_t elements) { return (elements + kAlignElements - 1) / kAlignElements * kAlignElements; }

}  // namespace

DataParallel::DataParallel(models::Model& model, comm::Communicator& data, at::Device device) : data_(data) {
  for (const nn::Unit& unit : model.units()) {
    buckets_.push_back(std::make_unique<Bucket>());
    buckets_.back()->name = unit.name;
    buckets_.back()->parameters = unit.parameters;
    allocate(*buckets_.back(), device);
  }
  model.prepare(device);
}

void DataParallel::allocate(Bucket& bucket, at::Device device) {
  const at::NoGradGuard no_grad;
  int64_t elements = 0;
  for (const nn::Parameter* parameter : bucket.parameters) elements += aligned(parameter->elements());
  const at::ScalarType dtype = bucket.parameters.front()->dtype(), statistics = ops::compute_type(dtype);
  using memory::Purpose;
  const auto zeros = [&](Purpose purpose, at::ScalarType type) {
    const memory::PurposeScope scope(purpose);
    return at::zeros({elements}, at::TensorOptions(type).device(device));
  };
  const at::Tensor values = zeros(Purpose::weights, dtype);
  const at::Tensor masters = dtype == statistics ? values : zeros(Purpose::master_weights, statistics);
  if (device.is_cpu()) {
    const memory::PurposeScope scope(Purpose::gradients);
    bucket.gradients = data_.shared_empty("gradients/" + bucket.name, {elements}, statistics);
    if (data_.size() > 1)
      bucket.held = memory::HeldElsewhere(Purpose::gradients, static_cast<int64_t>(bucket.gradients.nbytes()));
  } else {
    bucket.gradients = zeros(Purpose::gradients, statistics);
  }
  int64_t offset = 0;
  for (nn::Parameter* parameter : bucket.parameters) {
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, offset, parameter->elements()).view(parameter->shape());
    };
    const at::Tensor master = part(masters);
    parameter->bind(dtype == statistics ? master : part(values), master, part(bucket.gradients));
    offset += aligned(parameter->elements());
  }
}

void DataParallel::initialize(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (const auto& bucket : buckets_) {
    for (nn::Parameter* parameter : bucket->parameters) {
      const at::Tensor flat = parameter->master().view({-1});
      for (const nn::Fragment& fragment : parameter->fragments())
        nn::initialize(*fragment.logical, 0, flat.narrow(0, fragment.local_offset, fragment.elements()), seed);
      at::Tensor value = parameter->value();
      if (!value.is_same(parameter->master())) value.copy_(parameter->master());
    }
  }
}

void DataParallel::begin_step(int64_t micro_batches) {
  for (const auto& bucket : buckets_) {
    bucket->incomplete = static_cast<int64_t>(bucket->parameters.size());
    bucket->work = {};
    for (nn::Parameter* parameter : bucket->parameters)
      parameter->expect_gradients(micro_batches, [this, to = bucket.get()](nn::Parameter&) { on_complete(*to); });
  }
}

void DataParallel::on_complete(Bucket& bucket) {
  if (--bucket.incomplete > 0) return;
  bucket.work = data_.all_reduce_async(bucket.gradients);
  data_.progress();
}

void DataParallel::finish_gradients() {
  const auto start = std::chrono::steady_clock::now();
  for (const auto& bucket : buckets_) {
    for (const nn::Parameter* parameter : bucket->parameters)
      TRIREME_CHECK(parameter->complete(), "the gradient of {} is not complete: {} of {} contributions arrived",
                    parameter->name(), parameter->arrived(), parameter->expected());
  }
  // In the order in which they were posted: the last units of the model first.
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) (*bucket)->work.wait();
  exposed_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace trireme::parallel
