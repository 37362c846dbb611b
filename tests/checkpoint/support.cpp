#include "support.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "checkpoint/reader.h"

namespace trireme::checkpoint::test {

std::vector<std::string> Meeting::exchange(int rank, const std::string& text) {
  std::unique_lock lock(mutex_);
  mine_[static_cast<size_t>(rank)] = text;
  const int64_t round = round_;
  if (++arrived_ == size_) {
    result_ = mine_;
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
  } else if (!changed_.wait_for(lock, std::chrono::seconds(30), [&] { return round_ != round; })) {
    throw std::runtime_error("a rank waited 30 s for the others");
  }
  return result_;  // the next round cannot end before this rank enters it
}

std::vector<std::string> on_ranks(int size, const std::function<void(Coordination&)>& body) {
  Meeting meeting(size);
  std::vector<std::string> thrown(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadRank coordination(meeting, rank);
      try {
        body(coordination);
      } catch (const std::exception& error) {
        thrown[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "trireme-checkpoint-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<LogicalTensor> sample_model() {
  return {{"blocks.0.attention.q.weight", {257, 33}, DType::f32},
          {"blocks.0.norm.weight", {13}, DType::bf16},
          {"big", {1601, 640}, DType::f64},  // 8.2 MB: several blocks; split over replicas
          {"count", {}, DType::i64},
          {"nothing", {0, 4}, DType::f32},
          {"one", {1}, DType::f16},
          {"cube", {5, 3, 7}, DType::i32},
          {"mask", {4, 1}, DType::u8}};
}

std::vector<std::byte> values_of(const LogicalTensor& tensor, const Box& box, uint64_t variant) {
  const auto element_bytes = static_cast<size_t>(size_of(tensor.dtype));
  const random::Key key = random::derive(random::make_key(7, tensor.name), variant);
  std::vector<std::byte> values(static_cast<size_t>(elements(box)) * element_bytes);
  if (values.empty()) return values;
  const int64_t run = box.size.empty() ? 1 : box.size.back();
  std::byte* to = values.data();
  for (int64_t first = 0; first < elements(box); first += run) {
    int64_t rest = first, index = 0, stride = 1;  // of the run's first element in the whole tensor
    for (size_t d = box.size.size(); d-- > 0;) {
      index += (box.offset[d] + rest % box.size[d]) * stride;
      rest /= box.size[d];
      stride *= tensor.shape[d];
    }
    for (int64_t i = 0; i < run; ++i, to += element_bytes) {
      const uint64_t bits = static_cast<uint64_t>(index + i + 1) * 0x9E3779B97F4A7C15u ^ key.value;
      std::memcpy(to, &bits, element_bytes);
    }
  }
  return values;
}

namespace {

/// Part `index` of `count` of dimension `d`, uneven: part i gets weight i, so the first gets nothing.
Box slice(Box box, size_t d, int64_t index, int64_t count) {
  if (d >= box.size.size()) throw std::logic_error("no such dimension");
  const int64_t total = std::max<int64_t>(1, count * (count - 1) / 2);
  const auto edge = [&](int64_t i) { return count == 1 ? i * box.size[d] : box.size[d] * (i * (i - 1) / 2) / total; };
  const int64_t begin = edge(index), end = edge(index + 1);
  box.offset[d] = begin;
  box.size[d] = end - begin;
  return box;
}

std::vector<Held> replicated(const LogicalTensor& tensor, int rank, int size) {
  return {{whole(tensor.shape), rank, size}};
}

std::vector<Held> rows(const LogicalTensor& tensor, int rank, int size) {
  if (tensor.shape.empty()) return replicated(tensor, rank, size);
  return {{slice(whole(tensor.shape), 0, rank, size)}};
}

std::vector<Held> columns(const LogicalTensor& tensor, int rank, int size) {
  if (tensor.shape.size() < 2) return rows(tensor, rank, size);
  return {{slice(whole(tensor.shape), tensor.shape.size() - 1, rank, size)}};
}

/// A 2 x size/2 mesh: rows over the second axis, columns over the first; vectors are replicated over the first.
std::vector<Held> grid(const LogicalTensor& tensor, int rank, int size) {
  const int outer = rank / (size / 2), inner = rank % (size / 2);
  if (tensor.shape.empty()) return replicated(tensor, rank, size);
  const Box mine = slice(whole(tensor.shape), 0, inner, size / 2);
  if (tensor.shape.size() < 2) return {{mine, outer, 2}};
  Box half = mine;
  const int64_t width = tensor.shape.back(), cut = width / 2;
  half.offset.back() = outer == 0 ? 0 : cut;
  half.size.back() = outer == 0 ? cut : width - cut;
  return {{half}};
}

/// Whole tensors dealt out by name, as pipeline stages hold them; big ones as two boxes a rank.
std::vector<Held> dealt(const LogicalTensor& tensor, int rank, int size) {
  if (tensor.name == "big") {
    const int64_t parts = 2 * size;
    Box first = whole(tensor.shape), second = first;
    for (auto [box, part] : {std::pair(&first, rank), std::pair(&second, rank + size)}) {
      box->offset[0] = tensor.shape[0] * part / parts;
      box->size[0] = tensor.shape[0] * (part + 1) / parts - box->offset[0];
    }
    return {{first}, {second}};
  }
  if (static_cast<int>(tensor.name.size()) % size != rank) return {};
  return {{whole(tensor.shape)}};
}

}  // namespace

std::vector<Layout> layouts() {
  return {{"one rank", 1, replicated},      {"two replicas", 2, replicated}, {"three replicas", 3, replicated},
          {"four replicas", 4, replicated}, {"rows of 2", 2, rows},          {"rows of 3", 3, rows},
          {"rows of 4", 4, rows},           {"columns of 3", 3, columns},    {"grid of 4", 4, grid},
          {"dealt to 3", 3, dealt}};
}

Holding hold(const Layout& layout, int rank, uint64_t variant) {
  Holding holding;
  for (const LogicalTensor& tensor : sample_model()) {
    for (const Held& held : layout.cut(tensor, rank, layout.size)) {
      holding.storage.push_back(values_of(tensor, held.box, variant));
      holding.fragments.push_back({tensor.name, tensor.shape, held.box, tensor.dtype, holding.storage.back().data(),
                                   held.replica, held.replicas});
    }
  }
  return holding;
}

nlohmann::json sample_state(int64_t step) {
  return {{"tokens", step * 4096},
          {"schedule", {{"name", "cosine"}, {"lr", 0.1}, {"horizon", 40}}},
          {"loader", {{"version", 1}, {"position", step * 8}}},
          {"config", {{"run", {{"dir", "somewhere"}}}}}};
}

std::vector<std::string> save_sample(const std::filesystem::path& run, const Layout& layout, int64_t step,
                                     uint64_t variant, const FaultHook& hook) {
  const Store store(run);
  return on_ranks(layout.size, [&](Coordination& coordination) {
    const Holding holding = hold(layout, coordination.rank(), variant);
    SaveRequest request{step, holding.fragments, sample_state(step), {{"name", layout.name}}};
    save(store, request, coordination, hook);
  });
}

void must_save_sample(const std::filesystem::path& run, const Layout& layout, int64_t step, uint64_t variant) {
  for (const std::string& error : save_sample(run, layout, step, variant)) ASSERT_EQ(error, "") << layout.name;
}

std::string load_and_compare(const std::filesystem::path& folder, const Layout& layout, uint64_t variant) {
  try {
    const CheckpointReader reader = CheckpointReader::open(folder);
    for (int rank = 0; rank < layout.size; ++rank) {
      std::vector<std::vector<std::byte>> storage;
      std::vector<Target> targets;
      const Holding wanted = hold(layout, rank, variant);
      for (const Fragment& fragment : wanted.fragments) {
        storage.emplace_back(static_cast<size_t>(elements(fragment.box) * size_of(fragment.dtype)), std::byte{0xEE});
        targets.push_back({fragment.name, fragment.shape, fragment.box, fragment.dtype, storage.back().data()});
      }
      reader.read(targets);
      for (size_t i = 0; i < targets.size(); ++i) {
        if (storage[i] != wanted.storage[i]) return fmt::format("rank {}: {} differs", rank, targets[i].name);
      }
    }
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace trireme::checkpoint::test
