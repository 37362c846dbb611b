// The machine. Catches: a container's limit that is overlooked, the limit of a parent group, "max" read as a number.
#include "base/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "base/host.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

TEST(Machine, ControlGroups) {
  const fs::path root = fs::temp_directory_path() / ("trireme-machine-" + std::to_string(getpid()));
  const int64_t none = std::numeric_limits<int64_t>::max();
  const struct {
    const char* name;
    const char* self;
    const char *top, *parent, *own;  // contents of memory.max; null: no such file
    int64_t limit;
  } rows[] = {{"no files", "0::/a/b\n", nullptr, nullptr, nullptr, none},
              {"own", "0::/a/b\n", nullptr, "max\n", "1000\n", 1000},
              {"parent is smaller", "0::/a/b\n", nullptr, "500\n", "1000\n", 500},
              {"only the mount, as in a container", "0::/host/path\n", "700\n", "1\n", "1\n", 700},
              {"root group", "0::/\n", "800\n", nullptr, nullptr, 800},
              {"version 1 lines", "5:memory:/a\n0::/a/b\n", nullptr, nullptr, "90\n", 90},
              {"no line", "", "60\n", nullptr, nullptr, 60}};
  for (const auto& row : rows) {
    fs::remove_all(root);
    fs::create_directories(root / "a" / "b");
    std::ofstream(root / "self") << row.self;
    const auto put = [](const fs::path& path, const char* text) {
      if (text != nullptr) std::ofstream(path) << text;
    };
    put(root / "memory.max", row.top);
    put(root / "a/memory.max", row.parent);
    put(root / "a/b/memory.max", row.own);
    EXPECT_EQ(memory_limit({root, root / "self"}), row.limit) << row.name;
  }
  std::ofstream(root / "cpu.max") << "150000 100000\n";
  EXPECT_EQ(cpu_limit({root, root / "self"}), 1.5);
  std::ofstream(root / "cpu.max") << "max 100000\n";
  EXPECT_EQ(cpu_limit({root, root / "self"}), std::numeric_limits<double>::infinity());
  fs::remove_all(root);
  // Version 1 has a folder for each controller, and no limit is -1 or a number near 2^63.
  fs::create_directories(root / "cpu");
  fs::create_directories(root / "memory");
  std::ofstream(root / "cpu/cpu.cfs_quota_us") << "-1\n";
  std::ofstream(root / "cpu/cpu.cfs_period_us") << "100000\n";
  std::ofstream(root / "memory/memory.limit_in_bytes") << "9223372036854771712\n";
  EXPECT_EQ(cpu_limit({root, root / "self"}), std::numeric_limits<double>::infinity());
  EXPECT_EQ(memory_limit({root, root / "self"}), none);
  std::ofstream(root / "cpu/cpu.cfs_quota_us") << "50000\n";
  std::ofstream(root / "memory/memory.limit_in_bytes") << "4096\n";
  EXPECT_EQ(cpu_limit({root, root / "self"}), 0.5);
  EXPECT_EQ(memory_limit({root, root / "self"}), 4096);
  fs::remove_all(root);
}

TEST(Machine, IsThere) {
  EXPECT_FALSE(allowed_cpus().empty());
  EXPECT_GE(usable_cores(), 1);
  EXPECT_GT(usable_memory_bytes(), int64_t{1} << 20);
  EXPECT_FALSE(host_name().empty());
}

}  // namespace
}  // namespace trireme
