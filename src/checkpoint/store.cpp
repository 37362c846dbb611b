#include "checkpoint/store.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/index.h"
#include "checkpoint/reader.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kTrashPrefix = ".trash-";

/// The step of a final folder's name: `step-` and at least 8 digits.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string digits = name.substr(kStepPrefix.size());
  if (digits.size() < 8 || digits.size() > 18) return std::nullopt;
  if (!std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  return std::stoll(digits);
}

/// Names in a folder; empty when there is no such folder.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  if (error) throw_errno("list", folder.string(), error.value());
  for (const fs::directory_entry& entry : entries) names.push_back(entry.path().filename().string());
  return names;
}

bool is_temporary(const std::string& name) {
  const size_t mark = name.find(".tmp-");
  return mark != std::string::npos && step_of(name.substr(0, mark)).has_value();
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) throw_errno("remove", folder.string(), error.value());
}

/// Whether the checkpoint's structure and this rank's part of its bytes are intact; else what is wrong.
std::string find_damage(const Entry& entry, const Coordination& coordination) {
  try {
    CheckpointReader::open(entry.folder).verify(coordination.rank(), coordination.size());
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

Store::Store(fs::path run_folder) : run_folder_(std::move(run_folder)), folder_(run_folder_ / "checkpoints") {}

fs::path Store::step_folder(int64_t step) const { return folder_ / fmt::format("{}{:08d}", kStepPrefix, step); }

std::vector<Entry> Store::step_folders() const {
  std::vector<Entry> entries;
  for (const std::string& name : names_in(folder_))
    if (const std::optional<int64_t> step = step_of(name)) entries.push_back({*step, folder_ / name});
  std::ranges::sort(entries, {}, &Entry::step);
  return entries;
}

std::vector<Entry> Store::list() const {
  std::vector<Entry> entries = step_folders();
  std::erase_if(entries, [](const Entry& entry) {
    std::error_code ignored;
    return !fs::exists(entry.folder / kIndexName, ignored);
  });
  return entries;
}

std::optional<Entry> Store::newest() const {
  const std::vector<Entry> entries = list();
  if (entries.empty()) return std::nullopt;
  return entries.back();
}

std::optional<Entry> Store::find_newest_loadable(Coordination& coordination,
                                                 const std::function<void(const std::string&)>& report) const {
  // Rank 0's view decides: another host may see a folder later, or not list at all.
  nlohmann::json mine = {{"steps", nlohmann::json::array()}};
  if (coordination.rank() == 0) {
    try {
      // Those without an index too: no crash leaves such a folder, so somebody took files away, and is told.
      for (const Entry& entry : step_folders()) mine["steps"].push_back(entry.step);
    } catch (const Error& error) {
      mine["error"] = error.what();
    }
  }
  const nlohmann::json first = nlohmann::json::parse(
      coordination.all_gather_strings(mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))[0]);
  if (first.contains("error")) throw InputError(first.at("error").get<std::string>());
  auto steps = first.at("steps").get<std::vector<int64_t>>();
  for (; !steps.empty(); steps.pop_back()) {
    const Entry entry{steps.back(), step_folder(steps.back())};
    const auto gathered = coordination.all_gather_strings(find_damage(entry, coordination));
    std::set<std::string> damages(gathered.begin(), gathered.end());  // ranks often see the same
    damages.erase("");
    if (damages.empty()) return entry;
    if (coordination.rank() == 0) {
      report(fmt::format("{} cannot be loaded: {}", entry.folder.string(), fmt::join(damages, "; ")));
    }
  }
  return std::nullopt;
}

void Store::prune(int64_t keep, int64_t newest_saved) const {
  TRIREME_CHECK(keep >= 0, "keep {}", keep);
  if (keep == 0) return;
  std::vector<Entry> entries = list();
  std::erase_if(entries, [&](const Entry& entry) { return entry.step > newest_saved; });
  for (int64_t i = 0; i + keep < static_cast<int64_t>(entries.size()); ++i) {
    const fs::path& folder = entries[static_cast<size_t>(i)].folder;
    const fs::path trash = folder_ / (std::string(kTrashPrefix) + folder.filename().string());
    remove_folder(trash);
    if (::rename(folder.c_str(), trash.c_str()) != 0) throw_errno("rename", folder.string(), errno);
    // The new name must be on disk before the first file is gone: else a crash could bring half a checkpoint back.
    sync_directory(folder_);
    remove_folder(trash);
  }
}

void Store::remove_leftovers() const {
  for (const std::string& name : names_in(folder_)) {
    if (is_temporary(name) || name.starts_with(kTrashPrefix)) remove_folder(folder_ / name);
  }
}

Entry resolve_checkpoint(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) throw_errno("open checkpoint", path.string(), error.value());
  if (!fs::is_directory(real)) {
    throw_input("{} is a file; a checkpoint is a folder, like RUN/checkpoints/step-00000100, or give RUN itself",
                path.string());
  }
  if (fs::exists(real / kIndexName, error)) return {read_index(real).step, real};

  const bool is_run = fs::is_directory(real / "checkpoints", error);
  if (is_run || real.filename() == "checkpoints") {
    const Store store(is_run ? real : real.parent_path());
    if (std::optional<Entry> newest = store.newest()) return *newest;
    throw_input("{} has no complete checkpoint", store.folder().string());
  }
  const Store siblings(real.parent_path().parent_path());
  std::string hint;
  if (const auto newest = siblings.newest())
    hint = fmt::format("; the newest complete one is {}", newest->folder.string());
  if (is_temporary(real.filename().string())) {
    throw_input("{} is a save under way, or was interrupted{}", path.string(), hint);
  }
  throw_input("{} is not a checkpoint: it has no {} and no folder `checkpoints`{}", path.string(), kIndexName, hint);
}

}  // namespace trireme::checkpoint
