#include "parallel/use_observer.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace trireme::parallel {
namespace {

constexpr c10::DispatchKey kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

struct Watched {
  UseObserver* observer = nullptr;
  size_t index = 0;
};

// Of this thread: the kernel below is a plain function and has no other context.
std::unordered_map<const void*, Watched>& watched() {
  thread_local std::unordered_map<const void*, Watched> storages;
  return storages;
}

class Uses {
 public:
  void add(const at::Tensor& tensor, bool written) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto found = watched().find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (found == watched().end()) return;
    const Watched& use = found->second;
    if (written && written_.observer == nullptr) written_ = use;
    for (const Watched& other : uses_)
      if (other.observer == use.observer && other.index == use.index) return;
    uses_.push_back(use);
  }

  void add(const c10::IValue& value, bool written) {
    if (value.isTensor()) {
      add(value.toTensor(), written);
    } else if (value.isList()) {
      if (value.isIntList() || value.isDoubleList() || value.isBoolList()) return;
      for (const c10::IValue& item : value.toListRef())
        if (item.isTensor()) add(item.toTensor(), written);
    }
  }

  bool empty() const { return uses_.empty(); }

  void tell(const std::string& operation) {
    if (written_.observer != nullptr)
      throw_input(
          "{} writes to {}, which is made anew from what the optimizer holds: change the weights with update(), load() "
          "or with_whole_parameters()",
          operation, written_.observer->describe(written_.index));
    std::vector<size_t> indices;
    while (!uses_.empty()) {
      UseObserver* const observer = uses_.front().observer;
      indices.clear();
      std::erase_if(uses_, [&](const Watched& use) {
        if (use.observer != observer) return false;
        indices.push_back(use.index);
        return true;
      });
      observer->before_use(indices, operation);
    }
  }

 private:
  std::vector<Watched> uses_;
  Watched written_;
};

void ask_first(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& arguments = operation.schema().arguments();
  Uses uses;
  const size_t first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    uses.add((*stack)[first + i], alias != nullptr && alias->isWrite());
  }
  if (!uses.empty()) {
    const UnobservedScope unobserved;
    uses.tell(operation.schema().name());
  }
  // The mode stays on below: what an operation calls may be seen again, which costs little; that nothing escapes, as
  // when one of them runs a whole backward pass, is worth more.
  operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMode), stack);
}

void register_once() {
  static torch::Library library = [] {
    torch::Library made(torch::Library::IMPL, "_", kMode, __FILE__, __LINE__);
    made.fallback(torch::CppFunction::makeFromBoxedFunction<&ask_first>());
    return made;
  }();
}

}  // namespace

UseObserver::~UseObserver() {
  for (const void* storage : storages_) watched().erase(storage);
  if (!storages_.empty() && watched().empty()) c10::impl::tls_set_dispatch_key_included(kMode, false);
}

void UseObserver::watch(const at::Tensor& tensor, size_t index) {
  register_once();
  const void* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  watched()[storage] = {this, index};
  storages_.push_back(storage);
  c10::impl::tls_set_dispatch_key_included(kMode, true);
}

}  // namespace trireme::parallel
