// Private to parallel: to be asked before an operation of LibTorch reads memory that may not be there.
//
// torch::nn::Module has no forward hooks, and a hook would not see a weight that is read elsewhere (a tied one, a
// penalty on weights). So the question is put where every read passes: at the dispatcher. While storages are watched,
// a mode is on for this thread whose only kernel, for all operations, looks at the storages of the tensors that an
// operation gets, tells the observer of those that are watched, and goes on to the operation itself. Views share the
// storage of what they view, so a transposed weight that autograd has kept for backward is seen too.
//
// Contract
//  - What is seen: operations that this thread calls, forward and backward (LibTorch runs the backward of CPU tensors
//    on the thread that asks for it). What is not: code that reads through data_ptr() itself.
//  - An observer may throw; the error leaves the operation as any other would.
//  - An operation that writes to a watched storage is refused with InputError.
//  - Observers live and die on one thread.
//
// The mode is LibTorch's TESTING_ONLY_GenericMode, the one dispatch mode that neither LibTorch nor Python uses. An
// at::RecordFunction callback would see the same, but LibTorch swallows what it throws, and the operation would run on
// memory that is not there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace trireme::parallel {

class UseObserver {
 public:
  UseObserver() = default;
  virtual ~UseObserver();
  UseObserver(const UseObserver&) = delete;
  UseObserver& operator=(const UseObserver&) = delete;

  /// From now on uses of the storage of `tensor` are told, as those of `index`.
  void watch(const at::Tensor& tensor, size_t index);

  /// `operation` ("aten::addmm") is about to read the storages of `indices`, each once, in the order of its arguments.
  virtual void before_use(std::span<const size_t> indices, const std::string& operation) = 0;
  /// What to call `index` in an error.
  virtual std::string describe(size_t index) const = 0;

 private:
  std::vector<const void*> storages_;
};

/// While it lives, this thread's operations are not observed.
class [[nodiscard]] UnobservedScope {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::TESTING_ONLY_GenericMode};
};

}  // namespace trireme::parallel
