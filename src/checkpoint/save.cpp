#include "checkpoint/save.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/file_writer.h"
#include "checkpoint/index.h"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// Runs `work` and tells its result, or its failure, to all ranks. When one failed, rank 0 removes `temporary` and
/// every rank throws the same error: no rank may go on to a step that others do not reach.
std::vector<json> agree(Coordination& coordination, int64_t step, const fs::path& temporary,
                        const std::function<json()>& work) {
  json mine;
  try {
    mine["result"] = work();
  } catch (const Error& error) {
    mine = {{"error", error.what()}, {"code", static_cast<int>(error.code())}};
  } catch (const std::exception& error) {
    mine = {{"error", error.what()}, {"code", static_cast<int>(ExitCode::internal)}};
  }
  // Paths in messages may not be UTF-8; a message must get through all the same.
  const auto gathered = coordination.all_gather_strings(mine.dump(-1, ' ', false, json::error_handler_t::replace));

  std::vector<json> results;
  std::vector<std::string> faults;
  bool user_can_mend = true;
  for (size_t rank = 0; rank < gathered.size(); ++rank) {
    const json theirs = json::parse(gathered[rank]);
    results.push_back(theirs.value("result", json()));
    if (!theirs.contains("error")) continue;
    user_can_mend = user_can_mend && theirs.at("code") == static_cast<int>(ExitCode::bad_input);
    faults.push_back(fmt::format("rank {}: {}", rank, theirs.at("error").get<std::string>()));
  }
  if (faults.empty()) return results;

  if (coordination.rank() == 0 && !temporary.empty()) {
    std::error_code ignored;  // the next save tries again
    fs::remove_all(temporary, ignored);
  }
  coordination.barrier();
  constexpr size_t kShown = 4;
  if (faults.size() > kShown) {
    faults[kShown] = fmt::format("and {} more ranks", faults.size() - kShown);
    faults.resize(kShown + 1);
  }
  const std::string message = fmt::format("the checkpoint of step {} was not saved, earlier ones are untouched: {}",
                                          step, fmt::join(faults, "; "));
  if (user_can_mend) throw InputError(message);
  throw InternalError(message);
}

/// A name that no other save, also of a process that got the same pid, has used.
std::string make_token() {
  std::random_device entropy;
  return fmt::format("{:08x}{:08x}", entropy(), entropy());
}

/// Rank 0: an empty temporary folder beside the final one. Returns its name.
json prepare(const Store& store, int64_t step) {
  make_directories(store.folder());
  sync_directory(store.run_folder());
  store.remove_leftovers();
  const std::string name = fmt::format("{}.tmp-{}", store.step_folder(step).filename().string(), make_token());
  make_directories(store.folder() / name);
  return name;
}

/// The parts of this rank's fragments that it is to write.
std::vector<Part> share_of_rank(const SaveRequest& request) {
  std::vector<Part> parts;
  for (const Fragment& fragment : request.fragments) {
    const std::optional<Box> share = share_of_replica(fragment);
    if (!share) continue;
    // A share is whole rows of the fragment's box, so its values are contiguous too.
    const int64_t row =
        share->size.empty() || fragment.box.size[0] == 0 ? 0 : elements(fragment.box) / fragment.box.size[0];
    const int64_t first = share->size.empty() ? 0 : share->offset[0] - fragment.box.offset[0];
    Part part;
    part.stored = {.key = key_of(fragment.name, fragment.shape, *share),
                   .name = fragment.name,
                   .shape = fragment.shape,
                   .box = *share,
                   .dtype = fragment.dtype,
                   .checksum = {}};
    const bool again = elements(*share) == 0 && std::ranges::any_of(parts, [&](const Part& other) {
                         return other.stored.key == part.stored.key;  // an empty tensor held as several boxes
                       });
    if (again) continue;
    part.data = fragment.data == nullptr ? nullptr : fragment.data + first * row * size_of(fragment.dtype);
    parts.push_back(std::move(part));
  }
  return parts;
}

/// Every rank: its file, durable. Returns what rank 0 needs for the index; null when there was nothing to write.
json write_share(const fs::path& temporary, const SaveRequest& request, int rank, const FaultHook& hook) {
  std::vector<Part> parts = share_of_rank(request);
  if (parts.empty()) return {};
  if (!fs::is_directory(temporary)) {
    throw_input("{}, which rank 0 has just made, is not there: run.dir must be on a file system that all hosts share",
                temporary.string());
  }
  json tensors = json::array();
  for (const Part& part : parts) {
    tensors.push_back({part.stored.name, part.stored.shape, name_of(part.stored.dtype), elements(part.stored.box)});
  }
  const std::string name = fmt::format("rank-{:05d}.safetensors", rank);
  const WrittenFile written =
      write_rank_file(temporary / name, std::move(parts), [&](std::string_view point) { hook(point, rank); });
  sync_directory(temporary);
  return {{"name", name}, {"bytes", written.bytes}, {"checksum", written.header_checksum}, {"tensors", tensors}};
}

/// The index over what all ranks wrote. A tensor that they do not cover exactly is a fault of the caller's fragments:
/// it is found now, not when somebody needs the checkpoint.
Index merge(const SaveRequest& request, const std::vector<json>& written) {
  Index index;
  index.step = request.step;
  index.world_size = static_cast<int64_t>(written.size());
  index.layout = request.layout;
  index.state = request.state;
  std::map<std::string, std::pair<LogicalTensor, int64_t>> found;  // by name; how many elements
  for (const json& file : written) {
    if (file.is_null()) continue;
    index.files.push_back({file.at("name"), file.at("bytes"), file.at("checksum")});
    for (const json& entry : file.at("tensors")) {
      const LogicalTensor tensor{entry.at(0), entry.at(1), dtype_from_name(entry.at(2).get<std::string>())};
      auto& [known, count] = found.try_emplace(tensor.name, tensor, 0).first->second;
      TRIREME_CHECK(known == tensor, "{} is {} {} on one rank and {} {} on another", tensor.name, to_text(known.shape),
                    name_of(known.dtype), to_text(tensor.shape), name_of(tensor.dtype));
      count += entry.at(3).get<int64_t>();
    }
  }
  for (const auto& [name, tensor] : found) {
    const int64_t wanted = elements(tensor.first.shape);
    TRIREME_CHECK(tensor.second == wanted, "the ranks wrote {} elements of {} {}, which has {}", tensor.second, name,
                  to_text(tensor.first.shape), wanted);
    index.tensors.push_back(tensor.first);
  }
  return index;
}

/// rename(2) that swaps with a folder of that name: a checkpoint of the same step is replaced at one instant.
void rename_into_place(const fs::path& temporary, const fs::path& final_folder) {
  if (!fs::exists(final_folder)) {
    if (::rename(temporary.c_str(), final_folder.c_str()) != 0) throw_errno("rename to", final_folder.string(), errno);
    return;
  }
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final_folder.c_str(), RENAME_EXCHANGE) == 0) {
    // The swap must be on disk before the first file of the old one is gone: else a crash could bring half of it back
    // under the final name.
    sync_directory(final_folder.parent_path());
    std::error_code ignored;             // the new one is in place; the next save sweeps again
    fs::remove_all(temporary, ignored);  // the old one, under the temporary name
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) throw_errno("rename to", final_folder.string(), errno);
  // A file system without the swap (NFS): for an instant only the checkpoints of other steps are there.
  fs::path trash =
      final_folder.parent_path() / fmt::format(".trash-{}-{}", final_folder.filename().string(), make_token());
  fs::rename(final_folder, trash);
  fs::rename(temporary, final_folder);
  sync_directory(final_folder.parent_path());
  std::error_code ignored;
  fs::remove_all(trash, ignored);
}

/// Rank 0: the commit. All tensors are durable; the index follows, then the name.
void commit(const fs::path& temporary, const fs::path& final_folder, const Index& index, const FaultHook& hook) {
  hook("before_index", 0);
  write_file_durably(temporary / kIndexName, encode_index(index));
  hook("before_rename", 0);
  rename_into_place(temporary, final_folder);
  sync_directory(final_folder.parent_path());
  hook("after_rename", 0);
}

}  // namespace

SaveReport save(const Store& store, const SaveRequest& request, Coordination& coordination,
                const FaultHook& given_hook) {
  const auto start = std::chrono::steady_clock::now();
  const FaultHook hook = given_hook ? given_hook : [](std::string_view, int) {};
  const int rank = coordination.rank();

  fs::path temporary;
  const std::vector<json> prepared = agree(coordination, request.step, temporary, [&]() -> json {
    std::ranges::for_each(request.fragments, check_fragment);
    if (rank != 0) return {};
    const json name = prepare(store, request.step);
    temporary = store.folder() / name.get<std::string>();
    return name;
  });
  temporary = store.folder() / prepared[0].get<std::string>();

  const std::vector<json> written =
      agree(coordination, request.step, temporary, [&] { return write_share(temporary, request, rank, hook); });

  SaveReport report;
  report.folder = store.step_folder(request.step);
  agree(coordination, request.step, temporary, [&]() -> json {
    if (rank == 0) commit(temporary, report.folder, merge(request, written), hook);
    return {};
  });

  for (const json& file : written) {
    if (!file.is_null()) report.bytes += file.at("bytes").get<int64_t>();
  }
  if (!written[static_cast<size_t>(rank)].is_null()) report.rank_bytes = written[static_cast<size_t>(rank)].at("bytes");
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace trireme::checkpoint
