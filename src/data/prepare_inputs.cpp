#include "data/prepare_inputs.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

bool is_pattern(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

/// Walks folders into a list of files.
class Gatherer {
 public:
  explicit Gatherer(const fs::path& out) : out_(fs::weakly_canonical(out)) {}

  void add_file(const fs::path& path, const std::string& name) {
    if (!seen_.insert(path.lexically_normal().string()).second) return;
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) {
      faults.push_back(fmt::format("cannot read {}: {}", path.string(), std::generic_category().message(errno)));
      return;
    }
    files.push_back({.path = path,
                     .name = name,
                     .bytes = static_cast<int64_t>(info.st_size),
                     .modified_ns = static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec});
  }

  /// Files below `folder` whose path matches `pattern` (empty: all). Returns how many there were.
  int64_t add_folder(const fs::path& folder, const std::string& pattern) {
    int64_t count = 0;
    std::error_code error;
    fs::recursive_directory_iterator walk(folder, fs::directory_options::follow_directory_symlink, error);
    if (error) {
      faults.push_back(fmt::format("cannot read folder {}: {}", folder.string(), error.message()));
      return 0;
    }
    for (; walk != fs::recursive_directory_iterator(); walk.increment(error)) {
      const fs::path& path = walk->path();
      const bool hidden = path.filename().string().starts_with('.');
      // A folder linked into itself would be walked for ever; our own output below an input is no text.
      if (walk->is_directory() && (hidden || walk.depth() > 100 || fs::weakly_canonical(path) == out_)) {
        walk.disable_recursion_pending();
      }
      if (hidden || !walk->is_regular_file()) continue;
      if (!pattern.empty() && !glob_match(pattern, path.lexically_normal().string())) continue;
      add_file(path, path.lexically_relative(folder).string());
      ++count;
    }
    if (error) faults.push_back(fmt::format("cannot read folder {}: {}", folder.string(), error.message()));
    return count;
  }

  void add(const std::string& input) {
    const fs::path path(input);
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) {
      if (add_folder(path, "") == 0) faults.push_back(fmt::format("folder {} has no files to read", input));
    } else if (fs::is_regular_file(status)) {
      add_file(path, path.filename().string());
    } else if (fs::exists(status)) {
      faults.push_back(fmt::format("{} is neither a file nor a folder", input));
    } else if (is_pattern(input)) {
      fs::path base;
      for (const fs::path& part : path) {
        if (is_pattern(part.string())) break;
        base /= part;
      }
      const fs::path start = base.empty() ? "." : base;
      if (!fs::is_directory(start) || add_folder(start, path.lexically_normal().string()) == 0) {
        faults.push_back(fmt::format("no file matches {}", input));
      }
    } else {
      faults.push_back(fmt::format("there is no file or folder {}", input));
    }
  }

  std::vector<InputFile> files;
  std::vector<std::string> faults;

 private:
  fs::path out_;
  std::set<std::string> seen_;
};

bool matches_path(const InputFile& file, const std::string& entry) {
  return file.name == entry || file.path.lexically_normal() == fs::path(entry).lexically_normal() ||
         file.path.filename() == entry;
}

bool matches_glob(const InputFile& file, const std::string& pattern) {
  return glob_match(pattern, file.name) || glob_match(pattern, file.path.string()) ||
         glob_match(pattern, file.path.filename().string());
}

void hold_out(const PrepareOptions& options, std::vector<InputFile>& files, std::vector<std::string>& faults) {
  const auto mark = [&](std::string_view option, const std::string& entry,
                        bool (*matches)(const InputFile&, const std::string&)) {
    bool any = false;
    for (InputFile& file : files) {
      if (!matches(file, entry)) continue;
      file.held_out = any = true;
    }
    if (!any) faults.push_back(fmt::format("{}: none of the {} input files is {}", option, files.size(), entry));
  };
  for (const std::string& pattern : options.eval_glob) mark("--eval-glob", pattern, matches_glob);
  if (!options.eval_list.empty()) {
    std::istringstream lines(read_file(options.eval_list));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) mark(options.eval_list.string(), line, matches_path);
    }
  }
  const bool by_path = !options.eval_glob.empty() || !options.eval_list.empty();
  const auto held_out = std::count_if(files.begin(), files.end(), [](const InputFile& file) { return file.held_out; });
  if (by_path && faults.empty() && held_out == static_cast<int64_t>(files.size())) {
    faults.push_back(fmt::format("all {} input files are held out: nothing is left to train on", files.size()));
  }
  if (by_path && faults.empty() && held_out == 0) faults.push_back("no file is held out: the list is empty");
}

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

Inputs gather_inputs(const PrepareOptions& options) {
  Gatherer gatherer(options.out);
  if (options.inputs.empty()) gatherer.faults.push_back("no input: give files, folders or patterns of text");
  for (const std::string& input : options.inputs) gatherer.add(input);
  Inputs inputs{.files = std::move(gatherer.files), .bytes = 0, .names_digest = {}, .listing_digest = {}};
  std::sort(inputs.files.begin(), inputs.files.end(),
            [](const InputFile& a, const InputFile& b) { return a.path.string() < b.path.string(); });
  if (gatherer.faults.empty()) hold_out(options, inputs.files, gatherer.faults);
  if (!gatherer.faults.empty()) throw InputError(gatherer.faults);

  Hasher names;
  Hasher listing;
  for (const InputFile& file : inputs.files) {
    inputs.bytes += file.bytes;
    const std::string line = fmt::format("{}\n{} {}\n", file.name, file.bytes, file.held_out);
    names.add(line);
    listing.add(fmt::format("{}{}\n", line, file.modified_ns));
  }
  inputs.names_digest = names.hex();
  inputs.listing_digest = listing.hex();
  return inputs;
}

}  // namespace trireme::data
