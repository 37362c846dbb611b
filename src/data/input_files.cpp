#include "data/input_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/error.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

bool is_pattern(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

std::string reason(int error) { return std::generic_category().message(error); }

/// Walks folders into a list of files.
class Walk {
 public:
  explicit Walk(const fs::path& except) : except_(except.empty() ? fs::path() : fs::weakly_canonical(except)) {}

  void add(const std::string& input) {
    const fs::path path(input);
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) {
      if (add_folder(path, "", 0) == 0) faults.push_back(fmt::format("folder {} has no files to read", input));
    } else if (fs::is_regular_file(status)) {
      add_file(path, path.filename().string());
    } else if (fs::exists(status)) {
      faults.push_back(fmt::format("{} is neither a file nor a folder", input));
    } else if (is_pattern(input)) {
      add_pattern(path);
    } else {
      faults.push_back(fmt::format("there is no file or folder {}", input));
    }
  }

  std::vector<InputFile> files;
  std::vector<std::string> faults;

 private:
  void add_file(const fs::path& path, const std::string& name) {
    if (!seen_.insert(path.lexically_normal().string()).second) return;
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) {
      faults.push_back(fmt::format("cannot read {}: {}", path.string(), reason(errno)));
      return;
    }
    files.push_back({.path = path,
                     .name = name,
                     .bytes = static_cast<int64_t>(info.st_size),
                     .modified_ns = static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec});
  }

  void add_pattern(const fs::path& path) {
    const fs::path pattern = path.lexically_normal();
    fs::path start;
    int levels = 0;  // components from the first that is a pattern on
    for (const fs::path& part : pattern) {
      if (levels > 0 || is_pattern(part.string()))
        ++levels;
      else
        start /= part;
    }
    // Below its last level a pattern matches nothing, unless it crosses folders.
    if (pattern.string().find("**") != std::string::npos) levels = kDeepest;
    if (start.empty()) start = ".";
    std::error_code error;
    if (!fs::is_directory(start, error) || add_folder(start, pattern.string(), levels) == 0)
      faults.push_back(fmt::format("no file matches {}", path.string()));
  }

  /// Files below `folder` that match `pattern`, or lie in a folder that does (empty: all). Returns how many.
  int64_t add_folder(const fs::path& folder, const std::string& pattern, int levels) {
    int64_t count = 0;
    std::error_code error;
    fs::recursive_directory_iterator walk(folder, fs::directory_options::follow_directory_symlink, error);
    if (error) {
      faults.push_back(fmt::format("cannot read folder {}: {}", folder.string(), error.message()));
      return 0;
    }
    std::set<std::pair<dev_t, ino_t>> entered;  // a folder that is linked into itself would be walked for ever
    is_new_folder(folder, entered);
    int inside = -1;  // depth of the matching folder that the walk is in
    for (; walk != fs::recursive_directory_iterator(); walk.increment(error)) {
      const fs::path path = walk->path();
      if (walk.depth() <= inside) inside = -1;
      const bool matches = pattern.empty() || inside >= 0 || glob_match(pattern, path.lexically_normal().string());
      const bool hidden = path.filename().string().starts_with('.');
      const bool is_folder = walk->is_directory(error);
      if (is_folder) {
        const bool enter = !hidden && (matches || walk.depth() + 1 < levels) && is_new_folder(path, entered);
        if (!enter) walk.disable_recursion_pending();
        if (enter && matches && inside < 0 && !pattern.empty()) inside = walk.depth();
      } else if (!hidden && matches) {
        if (walk->is_regular_file(error)) {
          add_file(path, path.lexically_relative(folder).string());
          ++count;
        } else if (error) {
          faults.push_back(fmt::format("cannot read {}: {}", path.string(), error.message()));
        }
      }
      error.clear();
    }
    if (error) faults.push_back(fmt::format("cannot read all of folder {}: {}", folder.string(), error.message()));
    return count;
  }

  /// Whether a folder is to be read: not read before, not our own output, and readable (else that is a fault).
  bool is_new_folder(const fs::path& path, std::set<std::pair<dev_t, ino_t>>& entered) {
    std::error_code error;
    if (!except_.empty() && fs::weakly_canonical(path, error) == except_) return false;
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0 || ::access(path.c_str(), R_OK | X_OK) != 0) {
      faults.push_back(fmt::format("cannot read folder {}: {}", path.string(), reason(errno)));
      return false;
    }
    return entered.insert({info.st_dev, info.st_ino}).second;
  }

  static constexpr int kDeepest = 1 << 20;
  fs::path except_;
  std::set<std::string> seen_;
};

bool match_class(std::string_view& pattern, char c) {
  // pattern is behind the '['; leaves it behind the ']'
  const bool negated = !pattern.empty() && (pattern[0] == '!' || pattern[0] == '^');
  if (negated) pattern.remove_prefix(1);
  bool found = false;
  for (bool first = true; !pattern.empty() && (first || pattern[0] != ']'); first = false) {
    const char low = pattern[0];
    char high = low;
    pattern.remove_prefix(1);
    if (pattern.size() >= 2 && pattern[0] == '-' && pattern[1] != ']') {
      high = pattern[1];
      pattern.remove_prefix(2);
    }
    found |= low <= c && c <= high;
  }
  if (!pattern.empty()) pattern.remove_prefix(1);
  return found != negated && c != '/';
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view path) {
  while (!pattern.empty()) {
    if (pattern.starts_with("**")) {
      pattern.remove_prefix(2);
      // `**/` also stands for no folder at all.
      if (pattern.starts_with('/') && glob_match(pattern.substr(1), path)) return true;
      for (size_t skip = 0; skip <= path.size(); ++skip) {
        if (glob_match(pattern, path.substr(skip))) return true;
      }
      return false;
    }
    if (pattern[0] == '*') {
      pattern.remove_prefix(1);
      for (size_t skip = 0; skip <= path.size(); ++skip) {
        if (glob_match(pattern, path.substr(skip))) return true;
        if (skip < path.size() && path[skip] == '/') break;
      }
      return false;
    }
    if (path.empty()) return false;
    const char c = path[0];
    const char p = pattern[0];
    pattern.remove_prefix(1);
    path.remove_prefix(1);
    if (p == '?' ? c == '/' : p == '[' ? !match_class(pattern, c) : p != c) return false;
  }
  return path.empty();
}

std::vector<InputFile> find_input_files(std::span<const std::string> inputs, const fs::path& except) {
  Walk walk(except);
  if (inputs.empty()) walk.faults.push_back("no input: give files, folders or patterns of text, such as 'texts/*.txt'");
  for (const std::string& input : inputs) walk.add(input);
  if (!walk.faults.empty()) throw InputError(walk.faults);
  std::ranges::sort(walk.files, {}, [](const InputFile& file) { return file.path.string(); });
  return std::move(walk.files);
}

std::vector<fs::path> list_text_files(std::span<const std::string> inputs) {
  std::vector<fs::path> paths;
  for (const InputFile& file : find_input_files(inputs)) paths.push_back(file.path);
  return paths;
}

}  // namespace trireme::data
