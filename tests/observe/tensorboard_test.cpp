// TensorBoard files against published bytes. Catches: a wrong sum, a wrong field number, a torn record that hides the
// rest. What TensorBoard itself reads is compared in tensorboard_oracle.py.
#include "observe/tensorboard.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <string>

#include "base/file.h"

namespace trireme::observe {
namespace {

std::string bytes_of(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

// RFC 3720, B.4, and tensorflow/core/lib/hash/crc32c_test.cc.
TEST(TensorBoard, Sums) {
  EXPECT_EQ(tensorboard::crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(tensorboard::crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(tensorboard::masked_crc32c("\x1a\x11"
                                       "CRC test, one two"),
            0x5794D08AU);
}

// A file that TensorFlow wrote (tensorboard/data/server/event_file.rs).
TEST(TensorBoard, TheFirstRecord) {
  const std::string event = bytes_of("090000803899d6d7411a0d627261696e2e4576656e743a32");
  EXPECT_EQ(tensorboard::version_event(1599759586.0), event);
  EXPECT_EQ(tensorboard::record(event), bytes_of("1800000000000000a37f4b22") + event + bytes_of("124b36ab"));
}

TEST(TensorBoard, AScalar) {
  const std::array<Scalar, 1> loss = {{{"loss", 2.5}}};
  const std::string event = tensorboard::scalars_event(1.5e9, 7, loss);
  EXPECT_EQ(event, bytes_of("09000000c00b5ad64110072a0d0a0b0a046c6f73731500002040"));
  const std::string record = tensorboard::record(event);
  EXPECT_EQ(record.substr(8, 4), bytes_of("129bd82d"));
  EXPECT_EQ(record.substr(record.size() - 4), bytes_of("d5b63dbe"));
}

TEST(TensorBoard, AFullDiskEndsTheFileAndNothingElse) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("trireme-tensorboard-" + std::to_string(getpid()));
  TensorBoardFile file(folder, 1);
  StepRecord record;
  record.step = 1;
  file.append(record);
  const auto whole = std::filesystem::file_size(file.path());
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{whole + 20, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  testing::internal::CaptureStderr();
  for (record.step = 2; record.step < 5; ++record.step) file.append(record);
  const std::string warnings = testing::internal::GetCapturedStderr();
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_LE(std::filesystem::file_size(file.path()), whole + 20);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trireme::observe
