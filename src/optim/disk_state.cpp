#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <future>
#include <optional>
#include <utility>

#include "describe/offload_pieces.h"
#include "memory/purpose.h"
#include "optim/offloaded_state.h"

namespace trireme::optim {
namespace {

constexpr size_t kTensors = 3;  // master, both moments

class DiskState final : public OffloadedState {
 public:
  DiskState(std::span<nn::Parameter* const> parameters, memory::FileTensors& file)
      : OffloadedState(parameters), file_(file) {
    if (parameters.empty()) return;
    const at::ScalarType dtype = parameters.front()->master().scalar_type();
    element_bytes_ = static_cast<int64_t>(c10::elementSize(dtype));
    bool masters = false;
    for (const nn::Parameter* parameter : parameters_) {
      Offsets& offsets = offsets_.emplace_back();
      const at::Tensor& master = parameter->master();
      offsets[0] = file.offset_of(master);
      masters = masters || offsets[0];
      moments_.push_back({file.zeros(master.sizes(), dtype), file.zeros(master.sizes(), dtype)});
      offsets[1] = file.offset_of(moments_.back().exp_avg);
      offsets[2] = file.offset_of(moments_.back().exp_avg_sq);
    }
    const memory::PurposeScope scope(memory::Purpose::moments);
    for (Slot& slot : slots_)
      for (size_t t = masters ? 0 : 1; t < kTensors; ++t)
        slot.values[t] = memory::empty_aligned(describe::kOffloadPieceElements, dtype);
  }

  ~DiskState() override {
    for (Slot& slot : slots_) {
      if (slot.reading.valid()) slot.reading.wait();
      if (slot.writing.valid()) slot.writing.wait();
    }
  }

  void update(std::span<const size_t> parameters, const Body& body) override {
    const std::vector<Piece> pieces = pieces_of(parameters);
    for (size_t i = 0; i <= pieces.size(); ++i) {
      if (i < pieces.size()) {
        Slot& next = slots_[i % slots_.size()];
        if (next.writing.valid()) next.writing.get();
        next.reading = std::async(std::launch::async, [this, &next, piece = pieces[i]] { read(piece, next); });
      }
      if (i == 0) continue;
      const Piece& piece = pieces[i - 1];
      Slot& slot = slots_[(i - 1) % slots_.size()];
      slot.reading.get();
      body(piece, operands(piece, slot));
      slot.writing = std::async(std::launch::async, [this, &slot, piece] { write(piece, slot); });
    }
    for (Slot& slot : slots_)
      if (slot.writing.valid()) slot.writing.get();
  }

 private:
  using Offsets = std::array<std::optional<int64_t>, kTensors>;  // in the file; nothing: it is in memory
  struct Slot {
    std::array<at::Tensor, kTensors> values;
    std::future<void> reading, writing;
  };

  Operands operands(const Piece& piece, const Slot& slot) const {
    Operands all = Operands::of(*parameters_[piece.index], moments_[piece.index]).narrow(piece.first, piece.count);
    const std::array<at::Tensor*, kTensors> state = {&all.master, &all.exp_avg, &all.exp_avg_sq};
    for (size_t t = 0; t < kTensors; ++t)
      if (offsets_[piece.index][t]) *state[t] = slot.values[t].narrow(0, 0, piece.count);
    return all;
  }

  template <typename Function>
  void for_each_range(const Piece& piece, const Slot& slot, Function&& function) const {
    const auto bytes = static_cast<size_t>(memory::whole_blocks(piece.count * element_bytes_));
    for (size_t t = 0; t < kTensors; ++t)
      if (const auto& offset = offsets_[piece.index][t])
        function(*offset + piece.first * element_bytes_,
                 std::span(static_cast<std::byte*>(slot.values[t].data_ptr()), bytes));
  }
  void read(const Piece& piece, const Slot& slot) const {
    for_each_range(piece, slot, [&](int64_t offset, std::span<std::byte> to) { file_.read(offset, to); });
  }
  void write(const Piece& piece, const Slot& slot) const {
    for_each_range(piece, slot, [&](int64_t offset, std::span<std::byte> from) { file_.write(offset, from); });
  }

  memory::FileTensors& file_;
  int64_t element_bytes_ = 4;
  std::vector<Offsets> offsets_;
  std::array<Slot, describe::kDiskPieces> slots_;
};

}  // namespace

std::unique_ptr<OffloadedState> make_disk_state(std::span<nn::Parameter* const> parameters, memory::FileTensors& file) {
  return std::make_unique<DiskState>(parameters, file);
}

}  // namespace trireme::optim
