#include "observe/metrics_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/log.h"

namespace trireme::observe {
namespace {

using Json = nlohmann::ordered_json;

/// JSON's grammar has no word for these values, and the library would write null, which reads as "missing".
Json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

/// A name with bytes that are not UTF-8 must not end the run: they become U+FFFD.
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// The step of a line of ours; nullopt for any other line.
std::optional<double> step_of(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number()) return std::nullopt;
  return step->get<double>();
}

}  // namespace

std::string to_json_line(const StepRecord& record) {
  Json json;
  json["step"] = record.step;
  json["loss"] = number(record.loss);
  if (record.z_loss) json["z_loss"] = number(*record.z_loss);
  json["grad_norm"] = number(record.grad_norm);
  json["lr"] = number(record.lr);
  if (record.loss_scale) json["loss_scale"] = number(*record.loss_scale);
  json["tokens"] = record.tokens;
  json["tokens_per_second"] = number(record.tokens_per_second);
  json["mfu"] = number(record.mfu);
  json["step_time_s"] = number(record.step_time_s);
  json["data_time_s"] = number(record.data_time_s);
  json["comm_exposed_s"] = number(record.comm_exposed_s);
  json["peak_memory_bytes"] = record.peak_memory_bytes;
  if (record.memory) {
    Json& memory = json["memory"] = Json::object();
    memory["allocated"] = record.memory->allocated;
    memory["reserved"] = record.memory->reserved;
    memory["peak_allocated"] = record.memory->peak_allocated;
    memory["kept_for_backward"] = record.memory->kept_for_backward;
    Json& at_peak = memory["at_peak"] = Json::object();
    for (const auto& [purpose, bytes] : record.memory->at_peak) at_peak[purpose] = bytes;
    if (!record.memory->host_at_peak.empty()) {
      memory["peak_device"] = record.memory->peak_device;
      Json& host = memory["host_at_peak"] = Json::object();
      for (const auto& [purpose, bytes] : record.memory->host_at_peak) host[purpose] = bytes;
    }
  }
  if (!record.layer_grad_norms.empty()) {
    Json& norms = json["layer_grad_norms"] = Json::object();
    for (const auto& [name, norm] : record.layer_grad_norms) norms[name] = number(norm);
  }
  if (record.skipped) {
    json["skipped"] = true;
    if (record.skipped_parameter.empty())
      json["skipped_spike"] = true;
    else
      json["skipped_parameter"] = record.skipped_parameter;
  }
  return dump(json);
}

std::string to_json_line(const EvalRecord& record) {
  Json json;
  json["step"] = record.step;
  json[eval_key("eval_loss", record.set)] = number(record.eval_loss);
  json[eval_key("eval_bits_per_byte", record.set)] = number(record.eval_bits_per_byte);
  json[eval_key("eval_tokens", record.set)] = record.tokens;
  json[eval_key("eval_bytes", record.set)] = record.bytes;
  return dump(json);
}

std::string to_json_line(const ChoiceRecord& record) {
  Json json;
  json["step"] = record.step;
  json[eval_key("eval_acc", record.suite)] = number(record.acc);
  json[eval_key("eval_acc_norm", record.suite)] = number(record.acc_norm);
  json[eval_key("eval_questions", record.suite)] = record.questions;
  return dump(json);
}

MetricsFile::MetricsFile(const std::filesystem::path& path)
    : path_(path), file_(open_file(path, O_WRONLY | O_APPEND | O_CREAT, "write metrics to")) {}

int64_t MetricsFile::rewind(int64_t step) {
  const std::string text = read_file(path_);
  std::string kept;
  kept.reserve(text.size());
  int64_t removed = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t newline = text.find('\n', begin);
    const bool torn = newline == std::string::npos;
    const std::string_view line = std::string_view(text).substr(begin, torn ? text.npos : newline - begin);
    begin += line.size() + 1;
    const std::optional<double> of_line = step_of(line);
    // A last line that lacks only its newline is whole.
    const bool keep = of_line ? *of_line <= static_cast<double>(step) : !torn;
    if (keep) {
      kept.append(line).push_back('\n');
    } else {
      ++removed;
    }
  }
  if (kept == text) return 0;
  write_file_durably(path_, kept);
  file_ = open_file(path_, O_WRONLY | O_APPEND, "write metrics to");  // the old descriptor leads to the replaced file
  return removed;
}

bool MetricsFile::has(int64_t step, const std::string& key) const {
  std::istringstream lines(read_file(path_));
  for (std::string line; std::getline(lines, line);) {
    if (step_of(line) != static_cast<double>(step)) continue;
    if (nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false).contains(key)) return true;
  }
  return false;
}

void MetricsFile::append(const StepRecord& record) { append_line(to_json_line(record)); }
void MetricsFile::append(const EvalRecord& record) { append_line(to_json_line(record)); }
void MetricsFile::append(const ChoiceRecord& record) { append_line(to_json_line(record)); }

void MetricsFile::append_line(std::string line) {
  line.push_back('\n');
  struct stat before {};
  const bool sized = fstat(file_.get(), &before) == 0;
  if (sized && before.st_nlink == 0) warn_once("nobody will see what is written to", ENOENT);
  ssize_t written = 0;
  do {
    written = ::write(file_.get(), line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) return;
  // A short write means that the disk became full within the line, and says so only at the next write.
  const int error = written < 0 ? errno : ENOSPC;
  if (written > 0 && (!sized || ftruncate(file_.get(), before.st_size) != 0)) {
    warn_once("cannot cut off a torn line of", errno);
  }
  warn_once("cannot write to", error);
}

void MetricsFile::sync() {
  if (fdatasync(file_.get()) != 0 && errno != EINVAL && errno != EROFS) warn_once("cannot flush", errno);
}

void MetricsFile::warn_once(std::string_view what, int error) {
  if (warned_) return;
  warned_ = true;
  log::warning("{} {}: {}. Training goes on; later failures of this file are not reported", what, path_.string(),
               std::strerror(error));
}

}  // namespace trireme::observe
