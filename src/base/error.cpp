#include "base/error.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

namespace trireme {
namespace {

std::string join_faults(const std::vector<std::string>& faults) {
  if (faults.size() == 1) return faults.front();
  std::string text = fmt::format("{} problems:", faults.size());
  for (const std::string& fault : faults) text += "\n  - " + fault;
  return text;
}

// Letters inserted, left out, changed, or swapped with their neighbour (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1), above, above_that;
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    above_that = std::exchange(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], above_that[j - 2] + 1);
    }
  }
  return row[b.size()];
}

bool user_can_mend(int error) {
  switch (error) {
    case ENOENT:
    case EACCES:
    case EPERM:
    case ENOTDIR:
    case EISDIR:
    case EROFS:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EEXIST:
    case ENAMETOOLONG:
    case ELOOP:
      return true;
    default:
      return false;
  }
}

}  // namespace

InputError::InputError(std::vector<std::string> faults)
    : Error(ExitCode::bad_input, join_faults(faults)), faults_(std::move(faults)) {}

void throw_errno(std::string_view what, std::string_view path, int error) {
  const std::string message = fmt::format("cannot {} {}: {}", what, path, std::strerror(error));
  if (user_can_mend(error)) throw InputError(message);
  throw InternalError(message);
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace trireme
