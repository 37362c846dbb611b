// The header: what is written is read back, and every kind of damage is refused with the file's name.
#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/file_writer.h"
#include "support.h"

namespace trireme::checkpoint {
namespace {

using ::testing::HasSubstr;

void write(const std::filesystem::path& path, std::string_view header, std::string_view values) {
  std::ofstream file(path, std::ios::binary);
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << values;
}

TEST(Safetensors, HeaderComesBack) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "f.safetensors";
  std::vector<std::byte> values(48, std::byte{1});
  std::vector<Part> parts;
  parts.push_back({{"b@1,0", "b", {3, 4}, {{1, 0}, {2, 4}}, DType::u8, 0, 0, ""}, values.data()});
  parts.push_back({{"a \"quoted\"\n", "a \"quoted\"\n", {5}, {{0}, {5}}, DType::f64, 0, 0, ""}, values.data()});
  parts.push_back({{"scalar", "scalar", {}, {{}, {}}, DType::bf16, 0, 0, ""}, values.data()});
  const WrittenFile written = write_rank_file(path, parts, [](std::string_view) {});
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path)), written.bytes);
  const SafetensorsHeader header = read_header(path);
  EXPECT_EQ(header.checksum, written.header_checksum);
  EXPECT_EQ(header.data_offset % 8, 0);
  ASSERT_EQ(header.fragments.size(), 3u);
  EXPECT_EQ(header.fragments[0].name, "a \"quoted\"\n");  // widest elements first
  EXPECT_EQ(header.fragments[1].name, "scalar");
  EXPECT_EQ(header.fragments[2].box, (Box{{1, 0}, {2, 4}}));
  EXPECT_EQ(header.fragments[2].begin, 42);
}

TEST(Safetensors, DamageIsNamed) {
  const std::string meta =
      R"("__metadata__":{"fragment:w":"{\"name\":\"w\",\"shape\":[4],\"offset\":[0],\"xxh3_128\":\"0\"}"})";
  struct Row {
    std::string name, header, values, message;
  };
  const std::vector<Row> rows{
      {"not JSON", "{nonsense", "", "does not parse"},
      {"no metadata", R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd", "has no metadata"},
      {"unknown type", "{" + meta + R"(,"w":{"dtype":"F4","shape":[4],"data_offsets":[0,4]}})", "abcd", "F4"},
      {"bytes and shape", "{" + meta + R"(,"w":{"dtype":"U8","shape":[3],"data_offsets":[0,4]}})", "abcd",
       "has 4 bytes"},
      {"outside its shape", "{" + meta + R"(,"w":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})", "abcde",
       "not in the shape"},
      {"hole", "{" + meta + R"(,"w":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", "abcdef", "begins at byte 2"},
      {"cut short", "{" + meta + R"(,"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abc", "describes"},
      {"three offsets", "{" + meta + R"(,"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4,5]}})", "abcd",
       "3 data_offsets"},
      {"wrong kind", "{" + meta + R"(,"w":{"dtype":"U8","shape":"x","data_offsets":[0,4]}})", "abcd", "does not parse"},
  };
  const test::TemporaryFolder folder;
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const auto path = folder.path() / "f.safetensors";
    write(path, row.header, row.values);
    try {
      read_header(path);
      ADD_FAILURE() << "was accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(row.message));
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
    }
  }
  const auto path = folder.path() / "length.safetensors";
  std::ofstream(path, std::ios::binary) << std::string(12, '\xff');
  EXPECT_THROW(read_header(path), InputError);
  std::ofstream(path, std::ios::binary) << "abc";
  EXPECT_THROW(read_header(path), InputError);
}

}  // namespace
}  // namespace trireme::checkpoint
