#include "observe/aten_events.h"

#include <ATen/record_function.h>
#include <torch/csrc/profiler/util.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/profile.h"

namespace trireme::observe {
namespace {

struct Open : at::ObserverContext {
  explicit Open(uint64_t number) : recording(number) {}
  uint64_t recording;
};

// Of autograd's wrapper around an operation of ours: torch::autograd::CppNode<trireme::ops::(...)::Linear> is Linear.
std::string_view short_name(std::string_view name) {
  const size_t end = name.rfind('>');
  if (end == std::string_view::npos || !name.starts_with("torch::autograd::CppNode<")) return name;
  const std::string_view inner = name.substr(0, end);
  return inner.substr(inner.rfind(':') + 1);
}

bool is_product(std::string_view name) {
  return name == "aten::mm" || name == "aten::addmm" || name == "aten::bmm" || name == "aten::baddbmm";
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  if (!profile::recording()) return nullptr;
  const std::string_view name = function.name();
  if (name.starts_with("autograd::engine::")) return nullptr;  // the same node once more, with the engine's own time
  profile::Work work;
  if (is_product(name))
    work.flops = static_cast<double>(
        torch::profiler::impl::computeFlops(std::string(name), torch::profiler::impl::saveExtraArgs(function)));
  const bool node = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
  return std::make_unique<Open>(profile::detail::begin(node ? profile::Kind::node : profile::Kind::aten,
                                                       profile::detail::current_phase(), short_name(name), work));
}

void on_end(const at::RecordFunction&, at::ObserverContext* context) {
  const auto* open = static_cast<const Open*>(context);
  if (open != nullptr && open->recording != 0) profile::detail::end(open->recording);
}

}  // namespace

AtenEvents::AtenEvents()
    : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&on_begin, &on_end)
                                        .needsInputs(true)
                                        .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {}

AtenEvents::~AtenEvents() { at::removeCallback(handle_); }

}  // namespace trireme::observe
