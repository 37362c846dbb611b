#include "data/prepare_inputs.h"

#include <algorithm>
#include <sstream>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

bool matches_glob(const InputFile& file, const std::string& pattern) {
  return glob_match(pattern, file.name) || glob_match(pattern, file.path.string()) ||
         glob_match(pattern, file.path.filename().string());
}

/// The files that a line of a list names: by the name below the input, by path, or by the file's name alone.
class FilesByName {
 public:
  explicit FilesByName(const std::vector<InputFile>& files) {
    for (size_t i = 0; i < files.size(); ++i) {
      std::vector<std::string> names{files[i].name, files[i].path.lexically_normal().string(),
                                     files[i].path.filename().string()};
      std::ranges::sort(names);
      names.erase(std::unique(names.begin(), names.end()), names.end());
      for (std::string& name : names) files_[std::move(name)].push_back(i);
    }
  }
  const std::vector<size_t>& operator()(const std::string& line) const {
    static const std::vector<size_t> none;
    auto found = files_.find(line);
    if (found == files_.end()) found = files_.find(fs::path(line).lexically_normal().string());
    return found == files_.end() ? none : found->second;
  }

 private:
  std::unordered_map<std::string, std::vector<size_t>> files_;
};

/// Which of the files are held out, by their index. Adds to `faults`.
std::vector<bool> hold_out(const PrepareOptions& options, const std::vector<InputFile>& files,
                           std::vector<std::string>& faults) {
  std::vector<bool> held_out(files.size());
  const auto check = [&](bool any, std::string_view option, const std::string& entry) {
    if (!any) faults.push_back(fmt::format("{}: none of the {} input files is {}", option, files.size(), entry));
  };
  for (const std::string& pattern : options.eval_glob) {
    bool any = false;
    for (size_t i = 0; i < files.size(); ++i) {
      if (matches_glob(files[i], pattern)) held_out[i] = any = true;
    }
    check(any, "--eval-glob", pattern);
  }
  if (!options.eval_list.empty()) {
    const FilesByName by_name(files);
    std::istringstream lines(read_file(options.eval_list));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (line.empty()) continue;
      const std::vector<size_t>& named = by_name(line);
      for (const size_t i : named) held_out[i] = true;
      check(!named.empty(), options.eval_list.string(), line);
    }
  }
  const bool by_path = !options.eval_glob.empty() || !options.eval_list.empty();
  const auto count = std::ranges::count(held_out, true);
  if (by_path && faults.empty() && count == static_cast<int64_t>(files.size()))
    faults.push_back(fmt::format("all {} input files are held out: nothing is left to train on", files.size()));
  if (by_path && faults.empty() && count == 0) faults.push_back("no file is held out: the list is empty");
  return held_out;
}

}  // namespace

Inputs gather_inputs(const PrepareOptions& options) {
  Inputs inputs;
  inputs.files = find_input_files(options.inputs, options.out);
  std::vector<std::string> faults;
  inputs.held_out = hold_out(options, inputs.files, faults);
  if (!faults.empty()) throw InputError(faults);

  Hasher names;
  Hasher listing;
  for (size_t i = 0; i < inputs.files.size(); ++i) {
    const InputFile& file = inputs.files[i];
    inputs.bytes += file.bytes;
    const std::string line = fmt::format("{}\n{} {}\n", file.name, file.bytes, static_cast<bool>(inputs.held_out[i]));
    names.add(line);
    listing.add(fmt::format("{}{}\n", line, file.modified_ns));
  }
  inputs.names_digest = names.hex();
  inputs.listing_digest = listing.hex();
  return inputs;
}

}  // namespace trireme::data
