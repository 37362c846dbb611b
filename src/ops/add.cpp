#include "ops/add.h"

#include <ATen/ATen.h>

#include "ops/work.h"

namespace trireme::ops {

at::Tensor add(const at::Tensor& x, const at::Tensor& delta) {
  const profile::Scope scope(profile::Phase::forward, "residual add",
                             [&] { return pass_work({}, x.numel(), x.size(-1), bytes_of(x, x, delta)); });
  return at::add(x, delta);
}

}  // namespace trireme::ops
