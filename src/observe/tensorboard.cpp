#include "observe/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <protozero/pbf_writer.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/host.h"
#include "base/log.h"

namespace trireme::observe {
namespace tensorboard {
namespace {

// Field numbers of event.proto and summary.proto.
enum Event : uint32_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum SessionLog : uint32_t { kStatus = 1 };
constexpr int32_t kSessionStart = 1;
enum Summary : uint32_t { kValue = 1 };
enum Value : uint32_t { kTag = 1, kSimpleValue = 2, kHisto = 5 };
enum HistogramProto : uint32_t {
  kMin = 1,
  kMax = 2,
  kNum = 3,
  kSum = 4,
  kSumSquares = 5,
  kBucketLimit = 6,
  kBucket = 7
};

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82F63B78 : crc >> 1;
    table[byte] = crc;
  }
  return table;
}();

template <typename Integer>
std::string little_endian(Integer value) {
  std::string bytes(sizeof value, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(value & 0xFF);
    value >>= 8;
  }
  return bytes;
}

void begin(protozero::pbf_writer& event, double wall_time, int64_t step) {
  event.add_double(kWallTime, wall_time);
  if (step != 0) event.add_int64(kStep, step);
}

std::string session_start_event(double wall_time, int64_t step) {
  std::string bytes;
  protozero::pbf_writer event(bytes);
  begin(event, wall_time, step);
  protozero::pbf_writer(event, kSessionLog).add_enum(kStatus, kSessionStart);  // complete when it is destroyed
  return bytes;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8; }

std::string record(std::string_view event) {
  const std::string length = little_endian(static_cast<uint64_t>(event.size()));
  std::string bytes = length + little_endian(masked_crc32c(length));
  bytes += event;
  return bytes + little_endian(masked_crc32c(event));
}

std::string version_event(double wall_time) {
  std::string bytes;
  protozero::pbf_writer event(bytes);
  event.add_double(kWallTime, wall_time);
  event.add_string(kFileVersion, "brain.Event:2");
  return bytes;
}

std::string scalars_event(double wall_time, int64_t step, std::span<const Scalar> scalars) {
  std::string bytes;
  protozero::pbf_writer event(bytes);
  begin(event, wall_time, step);
  {
    protozero::pbf_writer summary(event, kSummary);
    for (const auto& [tag, number] : scalars) {
      protozero::pbf_writer value(summary, kValue);
      value.add_string(kTag, tag.data(), tag.size());
      value.add_float(kSimpleValue, static_cast<float>(number));
    }
  }
  return bytes;
}

std::string histogram_event(double wall_time, int64_t step, const NamedHistogram& named) {
  const Histogram& histogram = named.histogram;
  std::string bytes;
  protozero::pbf_writer event(bytes);
  begin(event, wall_time, step);
  {
    protozero::pbf_writer summary(event, kSummary);
    protozero::pbf_writer value(summary, kValue);
    value.add_string(kTag, named.name);
    protozero::pbf_writer histo(value, kHisto);
    histo.add_double(kMin, histogram.min);
    histo.add_double(kMax, histogram.max);
    histo.add_double(kNum, static_cast<double>(histogram.count));
    histo.add_double(kSum, histogram.sum);
    histo.add_double(kSumSquares, histogram.sum_of_squares);
    histo.add_packed_double(kBucketLimit, histogram.limits.begin(), histogram.limits.end());
    histo.add_packed_double(kBucket, histogram.counts.begin(), histogram.counts.end());
  }
  return bytes;
}

}  // namespace tensorboard

TensorBoardFile::TensorBoardFile(const std::filesystem::path& folder, int64_t first_step) {
  make_directories(folder);
  const double wall_time = tensorboard::now();
  // The names of one folder sort by time, which is the order in which TensorBoard reads them. Two starts within a
  // second would share a name but for the process.
  path_ = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.0", static_cast<int64_t>(wall_time), host_name(),
                               static_cast<int64_t>(::getpid()));
  file_ = open_file(path_, O_WRONLY | O_APPEND | O_CREAT, "write metrics to");
  write(tensorboard::version_event(wall_time));
  if (first_step > 1) write(tensorboard::session_start_event(wall_time, first_step));
}

void TensorBoardFile::scalars(int64_t step, std::span<const Scalar> scalars) {
  write(tensorboard::scalars_event(tensorboard::now(), step, scalars));
}

void TensorBoardFile::histograms(int64_t step, std::span<const NamedHistogram> histograms) {
  for (const NamedHistogram& histogram : histograms)
    if (histogram.histogram.count > 0) write(tensorboard::histogram_event(tensorboard::now(), step, histogram));
}

void TensorBoardFile::append(const StepRecord& record) {
  std::vector<Scalar> values = {{"train/loss", record.loss},
                                {"train/grad_norm", record.grad_norm},
                                {"train/lr", record.lr},
                                {"train/tokens", static_cast<double>(record.tokens)},
                                {"speed/tokens_per_second", record.tokens_per_second},
                                {"speed/mfu", record.mfu},
                                {"speed/step_time_s", record.step_time_s},
                                {"speed/data_time_s", record.data_time_s},
                                {"speed/comm_exposed_s", record.comm_exposed_s},
                                {"memory/peak_bytes", static_cast<double>(record.peak_memory_bytes)}};
  if (record.z_loss) values.push_back({"train/z_loss", *record.z_loss});
  if (record.loss_scale) values.push_back({"train/loss_scale", *record.loss_scale});
  std::vector<std::string> tags;
  tags.reserve(record.layer_grad_norms.size() +
               (record.memory ? record.memory->at_peak.size() : 0));  // views must stay
  if (record.memory) {
    values.push_back({"memory/allocated", static_cast<double>(record.memory->allocated)});
    values.push_back({"memory/reserved", static_cast<double>(record.memory->reserved)});
    values.push_back({"memory/peak_allocated", static_cast<double>(record.memory->peak_allocated)});
    if (!record.memory->host_at_peak.empty())
      values.push_back({"memory/peak_device", static_cast<double>(record.memory->peak_device)});
    for (const auto& [purpose, bytes] : record.memory->at_peak)
      values.push_back({tags.emplace_back("memory_at_peak/" + purpose), static_cast<double>(bytes)});
  }
  for (const auto& [name, norm] : record.layer_grad_norms)
    values.push_back({tags.emplace_back("layer_grad_norm/" + name), norm});
  scalars(record.step, values);
}

void TensorBoardFile::append(const EvalRecord& record) {
  const std::string loss = eval_key("eval/loss", record.set), bits = eval_key("eval/bits_per_byte", record.set);
  const std::array<Scalar, 2> values = {{{loss, record.eval_loss}, {bits, record.eval_bits_per_byte}}};
  scalars(record.step, values);
}

void TensorBoardFile::append(const ChoiceRecord& record) {
  const std::string acc = eval_key("eval/acc", record.suite), acc_norm = eval_key("eval/acc_norm", record.suite);
  const std::array<Scalar, 2> values = {{{acc, record.acc}, {acc_norm, record.acc_norm}}};
  scalars(record.step, values);
}

void TensorBoardFile::write(std::string_view event) {
  const std::string bytes = tensorboard::record(event);
  ssize_t written = 0;
  do {
    written = ::write(file_.get(), bytes.data(), bytes.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(bytes.size()) || std::exchange(warned_, true)) return;
  // A torn record would hide every later one from the reader.
  const int error = written < 0 ? errno : ENOSPC;
  log::warning("cannot write to {}: {}. Training goes on without it", path_.string(), std::strerror(error));
  file_.reset();
}

}  // namespace trireme::observe
