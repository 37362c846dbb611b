// What an update needs and nothing else does, kept out of the memory of the device between updates: moments, and master
// weights where the weights that compute are another tensor (Ren et al., "ZeRO-Offload", arXiv:2101.06840, section 4;
// Rajbhandari et al., "ZeRO-Infinity", arXiv:2104.07857, section 5.2.2, where it goes to NVMe).
//
// Between updates they are ordinary tensors, which a checkpoint, a digest or a replica check reads and loading writes.
// An update is done by the host, and takes them in pieces.
//   host  the host's memory (memory::Tier::host). A piece of gradients comes from the device, and a piece of the
//   weights
//         that compute goes back. On a CPU the device is the host, and the copies show what a device would have.
//   disk  a file (memory/file_tensors.h). While a piece is updated, the next is read and the one before is written.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "memory/file_tensors.h"
#include "nn/parameter.h"

namespace trireme::optim {

/// Both moments of a parameter, in the shape of what this rank holds of it.
struct Moments {
  at::Tensor exp_avg, exp_avg_sq;
};

/// What an update reads and writes: flat, the same elements of each. `copy` is undefined where the parameter has none.
struct Operands {
  at::Tensor master, exp_avg, exp_avg_sq, gradient, copy;

  static Operands of(const nn::Parameter& parameter, const Moments& moments);
  Operands narrow(int64_t first, int64_t count) const;
};

class OffloadedState {
 public:
  virtual ~OffloadedState() = default;

  /// To be read and written between updates, not during one.
  const std::vector<Moments>& moments() const { return moments_; }

  /// Elements [first, first + count) of parameter `index`, flat.
  struct Piece {
    size_t index = 0;
    int64_t first = 0, count = 0;
  };
  using Body = std::function<void(const Piece&, const Operands&)>;
  /// Calls `body` for all elements of these parameters, in order, with operands in the host's memory; what it writes is
  /// kept. Throws what reading and writing throw; the state is then partly updated.
  virtual void update(std::span<const size_t> parameters, const Body& body) = 0;

 protected:
  explicit OffloadedState(std::span<nn::Parameter* const> parameters)
      : parameters_(parameters.begin(), parameters.end()) {}
  std::vector<Piece> pieces_of(std::span<const size_t> parameters) const;

  std::vector<nn::Parameter*> parameters_;
  std::vector<Moments> moments_;
};

/// Moments are zeros in the host's memory.
std::unique_ptr<OffloadedState> make_host_state(std::span<nn::Parameter* const> parameters);
/// Moments are zeros in `file`, and masters are read and written there where they are its tensors. Parameters are on
/// the CPU. `file` must outlive it, and is settled before an update.
std::unique_ptr<OffloadedState> make_disk_state(std::span<nn::Parameter* const> parameters, memory::FileTensors& file);

}  // namespace trireme::optim
