// Files: what is written durably is whole, and every failure names the path.
#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <functional>

#include "base/dtype.h"
#include "base/error.h"
#include "base/hash.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("trireme-file-test-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    make_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  size_t entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_;
};

TEST_F(FileTest, DurableWriteReplacesAndLeavesNothingBeside) {
  const fs::path path = folder_ / "file";
  for (const std::string& content :
       {std::string("first"), std::string(), std::string("zero\0inside", 11), std::string(1 << 20, 'x')}) {
    write_file_durably(path, content);
    EXPECT_EQ(read_file(path), content);
    EXPECT_EQ(entries(), 1u) << "a temporary file was left";
  }
}

TEST_F(FileTest, FailedDurableWriteKeepsTheOldFile) {
  const fs::path path = folder_ / "file";
  write_file_durably(path, "old");
  const fs::path blocked = folder_ / "file" / "below-a-file";
  EXPECT_THROW(write_file_durably(blocked, "new"), InputError);
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, FailuresNameThePath) {
  const fs::path missing = folder_ / "no-such-file";
  const struct {
    const char* name;
    std::function<void()> act;
  } rows[] = {
      {"read", [&] { read_file(missing); }},
      {"map", [&] { MappedFile{missing}; }},
      {"open", [&] { open_file(missing, O_RDONLY, "open"); }},
      {"make folder below a file",
       [&] {
         write_file_durably(folder_ / "no-such-file-either", "");
         make_directories(folder_ / "no-such-file-either" / "folder");
       }},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    try {
      row.act();
      ADD_FAILURE() << "no error";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("no-such-file"));
    }
  }
}

TEST_F(FileTest, MapsEmptyAndFullFiles) {
  const fs::path path = folder_ / "file";
  write_file_durably(path, "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
  write_file_durably(path, "hello");
  MappedFile map(path);
  EXPECT_EQ(map.text(), "hello");
  MappedFile moved = std::move(map);
  EXPECT_EQ(moved.text(), "hello");
  EXPECT_TRUE(map.bytes().empty());  // NOLINT: a moved-from map is empty, so that two never unmap one range
}

TEST_F(FileTest, ReadExactlyReadsAPartAndRefusesAShortFile) {
  const fs::path path = folder_ / "file";
  write_file_durably(path, "0123456789");
  const FileDescriptor file = open_file(path, O_RDONLY, "open");
  std::array<std::byte, 4> into{};
  read_exactly(file.get(), into, 3, path);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(into.data()), 4), "3456");
  EXPECT_THROW(read_exactly(file.get(), into, 8, path), InputError);
}

TEST_F(FileTest, DescriptorsCloseOnceAndOnExec) {
  FileDescriptor file = open_file(folder_ / "file", O_CREAT | O_WRONLY, "create");
  EXPECT_NE(fcntl(file.get(), F_GETFD) & FD_CLOEXEC, 0);
  const int number = file.get();
  FileDescriptor other = std::move(file);
  EXPECT_FALSE(file);  // NOLINT: moved from
  EXPECT_EQ(other.get(), number);
  other.reset();
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
}

TEST(Hash, PiecesEqualTheWholeAndSeedsDiffer) {
  Hasher hasher;
  hasher.add("abc");
  hasher.add("");
  hasher.add("def");
  EXPECT_EQ(hasher.hex(), hash_hex("abcdef"));
  EXPECT_EQ(hasher.hex().size(), 32u);
  // XXH3's own value for empty input, canonical order: 128-bit 99aa06d3014798d86001c324468d497f, 64-bit
  // 2d06800538d394c2.
  EXPECT_EQ(hash_hex(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash64(""), 0x2d06800538d394c2u);
  EXPECT_NE(hash64("a", 1), hash64("a", 2));
}

TEST(DType, NamesAndSizesAgree) {
  const struct {
    DType dtype;
    const char* name;
    int64_t bytes;
  } rows[] = {{DType::u8, "U8", 1},     {DType::i32, "I32", 4}, {DType::i64, "I64", 8}, {DType::f16, "F16", 2},
              {DType::bf16, "BF16", 2}, {DType::f32, "F32", 4}, {DType::f64, "F64", 8}};
  for (const auto& row : rows) {
    EXPECT_EQ(name_of(row.dtype), row.name);
    EXPECT_EQ(size_of(row.dtype), row.bytes) << row.name;
    EXPECT_EQ(dtype_from_name(row.name), row.dtype);
  }
  EXPECT_THROW(dtype_from_name("F99"), InputError);
}

}  // namespace
}  // namespace trireme
