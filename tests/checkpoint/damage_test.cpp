// Damage of every part of a checkpoint is found and named, and never reaches a tensor that is used.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/digest.h"
#include "checkpoint/reader.h"
#include "support.h"

namespace trireme::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

void flip_byte(const fs::path& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(offset);
  file.put(byte);
}

int64_t offset_of(const fs::path& path, const std::string& name) {
  const SafetensorsHeader header = read_header(path);
  for (const StoredFragment& fragment : header.fragments) {
    if (fragment.name == name) return header.data_offset + fragment.begin + fragment.bytes / 2;
  }
  throw std::logic_error("no such tensor");
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Damage, OfTheStructureIsNamedOnOpen) {
  struct Row {
    std::string name;
    std::function<void(const fs::path& folder)> harm;
    std::vector<std::string> messages;
  };
  const std::vector<Row> rows{
      {"file missing",
       [](const fs::path& f) { fs::remove(f / "rank-00001.safetensors"); },
       {"rank-00001.safetensors", "No such file"}},
      {"file cut short",
       [](const fs::path& f) { fs::resize_file(f / "rank-00002.safetensors", 5000); },
       {"rank-00002.safetensors", "cut short"}},
      {"file too long",
       [](const fs::path& f) { std::ofstream(f / "rank-00002.safetensors", std::ios::app) << "x"; },
       {"rank-00002.safetensors", "too long"}},
      {"header",
       [](const fs::path& f) {
         // A digit inside a checksum: the header still parses.
         const fs::path path = f / "rank-00001.safetensors";
         flip_byte(path, static_cast<int64_t>(read_file(path).find("xxh3_128")) + 15);
       },
       {"rank-00001.safetensors"}},
      {"two files",
       [](const fs::path& f) {
         fs::remove(f / "rank-00000.safetensors");
         fs::resize_file(f / "rank-00001.safetensors", 4);
       },
       {"rank-00000.safetensors", "rank-00001.safetensors"}},
      {"index digit",
       [](const fs::path& f) {
         const std::string text = read_file(f / "index.json");
         flip_byte(f / "index.json", static_cast<int64_t>(text.find("\"tokens\": ")) + 10);
       },
       {"index.json", "damaged"}},
      {"index cut short", [](const fs::path& f) { fs::resize_file(f / "index.json", 100); }, {"index.json", "damaged"}},
      {"index empty", [](const fs::path& f) { fs::resize_file(f / "index.json", 0); }, {"index.json", "damaged"}},
      {"index missing", [](const fs::path& f) { fs::remove(f / "index.json"); }, {"index.json", "No such file"}},
      {"files of two checkpoints",
       [](const fs::path& f) {
         const fs::path other = f.parent_path() / "step-00000010" / "rank-00000.safetensors";
         fs::copy_file(other, f / "rank-00000.safetensors", fs::copy_options::overwrite_existing);
       },
       {"rank-00000.safetensors", "header"}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const test::TemporaryFolder run;
    ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[2], 10, 1));
    ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[2], 20, 2));
    const fs::path folder = Store(run.path()).step_folder(20);
    row.harm(folder);
    const std::string error = error_of([&] { CheckpointReader::open(folder); });
    for (const std::string& message : row.messages) EXPECT_THAT(error, HasSubstr(message));

    std::vector<std::string> reports;
    Alone alone;
    const auto newest =
        Store(run.path()).find_newest_loadable(alone, [&](const std::string& text) { reports.push_back(text); });
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(newest->step, 10);
    EXPECT_EQ(reports.size(), 1u);
  }
}

TEST(Damage, OfAValueIsNamedWithFileAndTensor) {
  for (const LogicalTensor& tensor : test::sample_model()) {
    if (elements(tensor.shape) == 0) continue;
    SCOPED_TRACE(tensor.name);
    const test::TemporaryFolder run;
    ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[0], 10, 1));
    ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[0], 20, 2));
    const fs::path folder = Store(run.path()).step_folder(20);
    const fs::path file = folder / "rank-00000.safetensors";
    flip_byte(file, offset_of(file, tensor.name));

    const CheckpointReader reader = CheckpointReader::open(folder);
    const auto named = AllOf(HasSubstr("tensor " + tensor.name + " in " + file.string()), HasSubstr("damaged"));
    EXPECT_THAT(error_of([&] { reader.verify(); }), named);
    EXPECT_THAT(error_of([&] { digest(reader); }), named);
    EXPECT_THAT(test::load_and_compare(folder, test::layouts()[0], 2), named);
    EXPECT_THAT(test::load_and_compare(folder, test::layouts()[5], 2), named);

    // Other tensors of the same file are fine.
    const LogicalTensor other = test::sample_model()[tensor.name == "cube" ? 7 : 6];
    std::vector<std::byte> room(static_cast<size_t>(elements(other.shape) * size_of(other.dtype)));
    const std::vector<Target> targets{{other.name, other.shape, whole(other.shape), other.dtype, room.data()}};
    EXPECT_EQ(error_of([&] { reader.read(targets); }), "nothing was thrown");

    // Three ranks share the search and agree on the checkpoint before.
    const Store store(run.path());
    const auto errors = test::on_ranks(3, [&](Coordination& coordination) {
      std::vector<std::string> reports;
      const auto newest =
          store.find_newest_loadable(coordination, [&](const std::string& text) { reports.push_back(text); });
      ASSERT_TRUE(newest.has_value());
      EXPECT_EQ(newest->step, 10);
      ASSERT_EQ(reports.size(), coordination.rank() == 0 ? 1u : 0u);
      if (!reports.empty()) {
        EXPECT_THAT(reports[0], AllOf(named, HasSubstr("step-00000020 cannot be loaded")));
      }
    });
    EXPECT_THAT(errors, ::testing::Each(""));
  }
}

TEST(Damage, OfAllLeavesNothingToResume) {
  const test::TemporaryFolder run;
  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[0], 10));
  fs::remove(Store(run.path()).step_folder(10) / "rank-00000.safetensors");
  Alone alone;
  int reports = 0;
  EXPECT_FALSE(Store(run.path()).find_newest_loadable(alone, [&](const std::string&) { ++reports; }).has_value());
  EXPECT_EQ(reports, 1);
}

TEST(Damage, ANewerFormatIsNotCalledDamage) {
  const test::TemporaryFolder run;
  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[0], 10));
  const fs::path index = Store(run.path()).step_folder(10) / "index.json";
  auto content = nlohmann::json::parse(read_file(index));
  content["version"] = 2;
  std::ofstream(index) << content.dump();
  EXPECT_THAT(error_of([&] { CheckpointReader::open(index.parent_path()); }), HasSubstr("format version 2"));
}

}  // namespace
}  // namespace trireme::checkpoint
