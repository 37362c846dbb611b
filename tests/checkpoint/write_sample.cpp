// Writes a one-rank checkpoint for safetensors_oracle.py: `checkpoint_write_sample RUN`. Values follow a formula that
// the oracle computes for itself.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "checkpoint/reader.h"
#include "support.h"

using namespace trireme;
using namespace trireme::checkpoint;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::vector<std::vector<std::byte>> storage;
  std::vector<Fragment> fragments;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, DType dtype, auto value_of) {
    using Value = decltype(value_of(int64_t{0}));
    std::vector<std::byte> values(static_cast<size_t>(elements(shape)) * sizeof(Value));
    for (int64_t i = 0; i < elements(shape); ++i) {
      const Value value = value_of(i);
      std::memcpy(values.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
    }
    storage.push_back(std::move(values));
    fragments.push_back({name, shape, whole(shape), dtype, storage.back().data(), 0, 1});
  };
  add("model.embed.weight", {257, 33}, DType::f32, [](int64_t i) { return static_cast<float>(i) * 0.25f - 7; });
  add("model.norm.weight", {13}, DType::f64, [](int64_t i) { return static_cast<double>(i) / 3; });
  add("half", {3, 5}, DType::bf16, [](int64_t i) { return static_cast<uint16_t>(0x3F80 + i); });
  add("half16", {3, 5}, DType::f16, [](int64_t i) { return static_cast<uint16_t>(0x3C00 + i); });
  add("count", {}, DType::i64, [](int64_t) { return int64_t{1} << 40; });
  add("empty", {0, 4}, DType::f32, [](int64_t) { return 0.0f; });
  add("small", {7}, DType::i32, [](int64_t i) { return static_cast<int32_t>(-i); });
  add("bytes", {5}, DType::u8, [](int64_t i) { return static_cast<uint8_t>(250 + i); });
  Alone alone;
  const SaveReport report = save(Store(argv[1]), {100, fragments, test::sample_state(100), {}}, alone);
  std::puts(report.folder.c_str());
}
