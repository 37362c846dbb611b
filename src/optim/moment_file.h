// Moments that are kept on disk between updates (Rajbhandari et al., "ZeRO-Infinity", arXiv:2104.07857, section 5.2.2,
// where the optimizer's state goes to NVMe).
//
// An update takes them in pieces: while one is updated, the next is read and the one before is written, past the page
// cache, which would otherwise hold what was meant to leave memory. Between updates they are ordinary tensors as well,
// in a map of the file: a checkpoint, a digest or a replica check reads them page by page, and loading writes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <span>
#include <vector>

#include "base/file.h"
#include "describe/moment_pieces.h"
#include "nn/parameter.h"

namespace trireme::optim {

/// Both moments of a parameter, in the shape of what this rank holds of it.
struct Moments {
  at::Tensor exp_avg, exp_avg_sq;
};

class MomentFile {
 public:
  /// Zeros for each parameter, in a file in `folder` (made if need be) that has no name any more: whatever happens,
  /// nothing of it stays. Throws where it cannot have all its bytes. Parameters are on the CPU.
  MomentFile(const std::filesystem::path& folder, std::span<nn::Parameter* const> parameters);
  ~MomentFile();
  MomentFile(const MomentFile&) = delete;
  MomentFile& operator=(const MomentFile&) = delete;

  /// In a map of the file. To be read and written between updates, not during one.
  const std::vector<Moments>& moments() const {
    touched_ = true;
    return moments_;
  }
  /// What was read and written through the map leaves memory, and is in the file. Cheap where nothing was; update()
  /// does it too.
  void settle();
  int64_t bytes() const { return bytes_; }
  /// Whether the file system can be read and written past the page cache.
  bool direct() const { return direct_; }

  /// Elements [first, first + count) of parameter `index`, flat.
  struct Piece {
    size_t index = 0;
    int64_t first = 0, count = 0;
  };
  /// Calls `body(piece, exp_avg, exp_avg_sq)` for all elements of these parameters, in order; what it writes is kept.
  /// Throws what reading and writing throw; the moments are then partly updated.
  void update(std::span<const size_t> parameters,
              const std::function<void(const Piece&, const at::Tensor&, const at::Tensor&)>& body);

 private:
  struct Slot {
    std::array<at::Tensor, 2> values;
    std::future<void> reading, writing;
  };
  struct Place {
    std::array<int64_t, 2> offset = {};  // in the file, of each moment
    int64_t elements = 0;
  };

  int64_t padded(int64_t elements) const;
  void open(const std::filesystem::path& folder);
  void read(const Piece& piece, const Slot& slot) const;
  void write(const Piece& piece, const Slot& slot) const;

  std::filesystem::path folder_;
  FileDescriptor file_;
  bool direct_ = false;
  mutable bool touched_ = false;  // the map may have been read or written since the last update
  int64_t bytes_ = 0, element_bytes_ = 4;
  std::byte* map_ = nullptr;
  std::vector<Place> places_;
  std::vector<Moments> moments_;
  std::array<Slot, describe::kMomentPieces> slots_;
};

}  // namespace trireme::optim
