#include "optim/moment_file.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "memory/purpose.h"

namespace trireme::optim {
namespace {

constexpr int64_t kBlock = 4096;  // what direct reads and writes, and their memory, are multiples of

// At an address that direct reads and writes take.
at::Tensor aligned(int64_t bytes, at::ScalarType dtype) {
  const at::Tensor memory = at::empty({bytes + kBlock}, at::kByte);
  const auto address = reinterpret_cast<uintptr_t>(memory.data_ptr());
  const auto skipped = static_cast<int64_t>((kBlock - address % kBlock) % kBlock);
  return memory.narrow(0, skipped, bytes).view(dtype);
}

}  // namespace

MomentFile::MomentFile(const std::filesystem::path& folder, std::span<nn::Parameter* const> parameters)
    : folder_(folder) {
  const at::ScalarType dtype = parameters.empty() ? at::kFloat : parameters.front()->master().scalar_type();
  element_bytes_ = static_cast<int64_t>(c10::elementSize(dtype));
  for (const nn::Parameter* parameter : parameters) {
    Place& place = places_.emplace_back();
    place.elements = parameter->held_elements();
    for (int64_t& offset : place.offset) {
      offset = bytes_;
      bytes_ += padded(place.elements);
    }
  }
  open(folder);
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto mapped = [&](int64_t offset) {
      return at::from_blob(map_ + offset, parameters[i]->master().sizes(), at::TensorOptions(dtype));
    };
    moments_.push_back({mapped(places_[i].offset[0]), mapped(places_[i].offset[1])});
  }
  const memory::PurposeScope scope(memory::Purpose::moments);
  for (Slot& slot : slots_)
    for (at::Tensor& values : slot.values) values = aligned(describe::kMomentPieceElements * element_bytes_, dtype);
}

MomentFile::~MomentFile() {
  for (Slot& slot : slots_) {
    if (slot.reading.valid()) slot.reading.wait();
    if (slot.writing.valid()) slot.writing.wait();
  }
  moments_.clear();
  if (map_ != nullptr) ::munmap(map_, static_cast<size_t>(bytes_));
}

// Bytes of a moment in the file.
int64_t MomentFile::padded(int64_t elements) const {
  return (elements * element_bytes_ + kBlock - 1) / kBlock * kBlock;
}

void MomentFile::open(const std::filesystem::path& folder) {
  make_directories(folder);
  bytes_ = std::max(bytes_, kBlock);
  file_ = open_nameless(folder, "make a file for moments in");
  direct_ = ::fcntl(file_.get(), F_SETFL, O_DIRECT) == 0;  // past the page cache where the file system can
  // All of it now: a disk that is too small is better told before the first step.
  const int error = ::posix_fallocate(file_.get(), 0, bytes_);
  if (error == EOPNOTSUPP || error == EINVAL) {
    const at::Tensor block = aligned(kBlock * 256, at::kByte).zero_();
    const auto* from = static_cast<const std::byte*>(block.const_data_ptr());
    for (int64_t at = 0; at < bytes_; at += kBlock * 256)
      write_exactly(file_.get(), {from, static_cast<size_t>(std::min(kBlock * 256, bytes_ - at))}, at, folder);
  } else if (error != 0) {
    throw_errno(fmt::format("make room for {} bytes of moments (optimizer.offload = \"disk\") in", bytes_),
                folder.string(), error);
  }
  void* map = ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (map == MAP_FAILED) throw_errno("map the file of moments in", folder.string(), errno);
  map_ = static_cast<std::byte*>(map);
}

void MomentFile::settle() {
  if (!std::exchange(touched_, false)) return;
  if (::msync(map_, static_cast<size_t>(bytes_), MS_SYNC) != 0)
    throw_errno("write moments to", folder_.string(), errno);
  ::madvise(map_, static_cast<size_t>(bytes_), MADV_DONTNEED);
  ::posix_fadvise(file_.get(), 0, bytes_, POSIX_FADV_DONTNEED);
}

void MomentFile::read(const Piece& piece, const Slot& slot) const {
  for (size_t m = 0; m < 2; ++m) {
    auto* to = static_cast<std::byte*>(slot.values[m].data_ptr());
    const int64_t at = places_[piece.index].offset[m] + piece.first * element_bytes_;
    read_exactly(file_.get(), {to, static_cast<size_t>(padded(piece.count))}, at, folder_);
  }
}

void MomentFile::write(const Piece& piece, const Slot& slot) const {
  for (size_t m = 0; m < 2; ++m) {
    const auto* from = static_cast<const std::byte*>(slot.values[m].const_data_ptr());
    const int64_t at = places_[piece.index].offset[m] + piece.first * element_bytes_;
    write_exactly(file_.get(), {from, static_cast<size_t>(padded(piece.count))}, at, folder_);
    if (direct_) continue;
    // Out of the page cache again.
    ::sync_file_range(file_.get(), at, padded(piece.count),
                      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(file_.get(), at, padded(piece.count), POSIX_FADV_DONTNEED);
  }
}

void MomentFile::update(std::span<const size_t> parameters,
                        const std::function<void(const Piece&, const at::Tensor&, const at::Tensor&)>& body) {
  std::vector<Piece> pieces;
  for (const size_t index : parameters)
    for (int64_t first = 0; first < places_[index].elements; first += describe::kMomentPieceElements)
      pieces.push_back({index, first, std::min(describe::kMomentPieceElements, places_[index].elements - first)});
  settle();
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
    body(piece, slot.values[0].narrow(0, 0, piece.count), slot.values[1].narrow(0, 0, piece.count));
    slot.writing = std::async(std::launch::async, [this, &slot, piece] { write(piece, slot); });
  }
  for (Slot& slot : slots_)
    if (slot.writing.valid()) slot.writing.get();
}

}  // namespace trireme::optim
