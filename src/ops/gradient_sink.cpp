#include "ops/gradient_sink.h"

#include "ops/dispatch.h"

namespace trireme::ops {

void deliver(GradientSink* sink, const at::Tensor& gradient) {
  if (sink == nullptr) return;
  const GradientTarget target = sink->target();
  TRIREME_CHECK(target.buffer.numel() == gradient.numel(), "gradient of {} elements for a weight of {}",
                gradient.numel(), target.buffer.numel());
  if (on_cpu(gradient) && gradient.is_contiguous() && target.buffer.is_contiguous() &&
      compute_type(gradient.scalar_type()) == target.buffer.scalar_type()) {
    dispatch(gradient.scalar_type(), [&](auto element) {
      using T = decltype(element);
      const T* source = data<T>(gradient);
      Compute<T>* to = data<Compute<T>>(target.buffer);
      parallel_rows(gradient.numel(), 1, [&](int64_t begin, int64_t end) {
        kernels<T>().add_to(end - begin, source + begin, to + begin, target.accumulate);
      });
    });
  } else if (target.accumulate) {
    target.buffer.add_(gradient.view(target.buffer.sizes()));
  } else {
    target.buffer.copy_(gradient.view(target.buffer.sizes()));
  }
  sink->delivered();
}

}  // namespace trireme::ops
