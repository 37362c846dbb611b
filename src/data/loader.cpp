#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/profile.h"
#include "base/random.h"

namespace trireme::data {
namespace {

/// Of the destructor, for the reading thread: long enough for one read, and short beside any deadline of the peers.
constexpr std::chrono::seconds kEndPatience{5};

/// The global order of one data set: sample at a position, whatever the ranks.
class Order {
 public:
  Order(uint64_t seed, int64_t samples)
      : key_(random::make_key(seed, "data order")), samples_(static_cast<uint64_t>(samples)) {}

  uint64_t sample(uint64_t position) {
    const uint64_t epoch = position / samples_;
    if (!permutation_ || epoch != epoch_) {
      permutation_.emplace(random::derive(key_, epoch), samples_);
      epoch_ = epoch;
    }
    return (*permutation_)(position % samples_);
  }

 private:
  random::Key key_;
  uint64_t samples_;
  uint64_t epoch_ = 0;
  std::optional<random::Permutation> permutation_;
};

int64_t accumulation_at(const LoaderOptions& options, uint64_t position) {
  return options.accumulation_at ? options.accumulation_at(position) : options.accumulation;
}

/// Samples of the step that begins at `position`, over all ranks.
uint64_t step_samples(const LoaderOptions& options, uint64_t position) {
  return static_cast<uint64_t>(options.micro_batch_size * accumulation_at(options, position) * options.data_ranks);
}

/// Reads the micro-batches of one rank; a pure function of the position.
class Reader {
 public:
  Reader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options, int64_t samples)
      : dataset_(std::move(dataset)), options_(options), order_(options.seed, samples) {}

  std::vector<Batch> read_step(uint64_t position) {
    const int64_t accumulation = accumulation_at(options_, position);
    std::vector<Batch> batches(static_cast<size_t>(accumulation));
    for (int64_t i = 0; i < accumulation; ++i) {
      const int64_t place = options_.place ? options_.place(i, accumulation) : options_.data_rank * accumulation + i;
      fill(batches[static_cast<size_t>(i)], position + static_cast<uint64_t>(place * options_.micro_batch_size));
    }
    return batches;
  }

 private:
  void fill(Batch& batch, uint64_t position) {
    const int64_t length = options_.seq_len;
    batch.rows = options_.micro_batch_size;
    batch.seq_len = length;
    batch.tokens.reserve(static_cast<size_t>(batch.rows * length));
    batch.labels.reserve(static_cast<size_t>(batch.rows * length));
    row_.resize(static_cast<size_t>(length) + 1);
    for (int64_t row = 0; row < batch.rows; ++row, ++position) {
      dataset_->copy_tokens(static_cast<int64_t>(order_.sample(position)) * length, row_);
      batch.tokens.insert(batch.tokens.end(), row_.begin(), row_.end() - 1);
      batch.labels.insert(batch.labels.end(), row_.begin() + 1, row_.end());
      batch.sample_ids.push_back(position);
    }
    batch.valid_tokens = batch.rows * length;
    if (options_.mask_document_starts) mask_document_starts(batch);
  }

  void mask_document_starts(Batch& batch) const {
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      if (batch.tokens[i] != dataset_->end_of_text()) continue;
      batch.labels[i] = ignored_label;
      --batch.valid_tokens;
    }
  }

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  Order order_;
  std::vector<int32_t> row_;
};

void check_options(const LoaderOptions& options) {
  std::vector<std::string> faults;
  const auto at_least_one = [&](std::string_view name, int64_t value) {
    if (value < 1) faults.push_back(fmt::format("{} = {} must be at least 1", name, value));
  };
  at_least_one("seq_len", options.seq_len);
  at_least_one("micro_batch_size", options.micro_batch_size);
  at_least_one("accumulation", options.accumulation);
  at_least_one("data ranks", options.data_ranks);
  if (options.data_rank < 0 || options.data_rank >= options.data_ranks) {
    faults.push_back(fmt::format("data rank {} is not in 0 .. {}", options.data_rank, options.data_ranks - 1));
  }
  if (!faults.empty()) throw InputError(faults);
}

void check_state(const LoaderState& state, const LoaderState& here, const std::filesystem::path& folder) {
  if (state.dataset.empty()) return;  // a fresh start
  std::vector<std::string> faults;
  if (state.dataset != here.dataset) {
    faults.push_back(fmt::format(
        "the checkpoint was trained on other data (fingerprint {}) than {} (fingerprint {}): its position in "
        "the data has no meaning here; give the data it was trained on, or load only its weights",
        state.dataset, folder.string(), here.dataset));
  }
  if (state.seq_len != here.seq_len) {
    faults.push_back(
        fmt::format("the checkpoint counts samples of {} tokens, and train.seq_len is {}: use {} to resume",
                    state.seq_len, here.seq_len, state.seq_len));
  }
  if (state.seed != here.seed) {
    faults.push_back(fmt::format("the checkpoint's data order has seed {}, and run.seed is {}: use {} to resume",
                                 state.seed, here.seed, state.seed));
  }
  if (!faults.empty()) throw InputError(faults);
}

}  // namespace

// One step is kept ready. The thread owns the reader; this struct is all that both sides touch, and both hold it, so
// that a thread stuck in a dead file system can be left behind at the deadline.
struct Loader::Prefetch {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::vector<Batch>> ready;
  std::exception_ptr failure;
  bool stop = false;
  bool ended = false;
  std::thread thread;

  static void run(const std::shared_ptr<Prefetch>& shared, Reader reader, uint64_t position,
                  const LoaderOptions& options) {
    profile::name_this_thread("loader");
    std::unique_lock lock(shared->mutex);
    while (!shared->stop) {
      lock.unlock();
      std::optional<std::vector<Batch>> batches;
      std::exception_ptr failure;
      try {
        const profile::Scope scope(profile::Kind::section, profile::Phase::data, "read a step");
        batches = reader.read_step(position);
      } catch (...) {
        failure = std::current_exception();
      }
      position += step_samples(options, position);
      lock.lock();
      shared->ready = std::move(batches);
      shared->failure = failure;
      shared->changed.notify_all();
      if (failure) break;
      shared->changed.wait(lock, [&] { return shared->stop || !shared->ready; });
    }
    shared->ended = true;
    shared->changed.notify_all();
  }
};

void to_json(nlohmann::json& json, const LoaderState& state) {
  json = {{"version", state.version},
          {"position", state.position},
          {"dataset", state.dataset},
          {"seq_len", state.seq_len},
          {"seed", state.seed}};
}

void from_json(const nlohmann::json& json, LoaderState& state) {
  try {
    json.at("version").get_to(state.version);
    if (state.version != LoaderState::current_version) {
      throw_input("the loader's record has version {}; this program reads {}", state.version,
                  LoaderState::current_version);
    }
    json.at("position").get_to(state.position);
    json.at("dataset").get_to(state.dataset);
    json.at("seq_len").get_to(state.seq_len);
    json.at("seed").get_to(state.seed);
  } catch (const nlohmann::json::exception& error) {
    throw_input("the loader's record cannot be read: {}", error.what());
  }
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options, LoaderState state) : options_(options) {
  check_options(options_);
  const int64_t tokens = dataset->token_count();
  if (tokens < options_.seq_len + 1) {
    throw_input(
        "the data in {} has {} tokens, and one sample needs seq_len + 1 = {}: give more text, or a train.seq_len of at "
        "most {}",
        dataset->folder().string(), tokens, options_.seq_len + 1, std::max<int64_t>(tokens - 1, 0));
  }
  samples_ = (tokens - 1) / options_.seq_len;
  state_ = {.position = state.position,
            .dataset = dataset->fingerprint(),
            .seq_len = options_.seq_len,
            .seed = options_.seed};
  check_state(state, state_, dataset->folder());
  prefetch_ = std::make_shared<Prefetch>();
  prefetch_->thread = std::thread(
      [shared = prefetch_, reader = Reader(std::move(dataset), options_, samples_), position = state_.position,
       options = options_]() mutable { Prefetch::run(shared, std::move(reader), position, options); });
}

Loader::~Loader() {
  std::unique_lock lock(prefetch_->mutex);
  prefetch_->stop = true;
  prefetch_->changed.notify_all();
  const bool ended = prefetch_->changed.wait_for(lock, kEndPatience, [&] { return prefetch_->ended; });
  lock.unlock();
  if (ended) {
    prefetch_->thread.join();
  } else {
    prefetch_->thread.detach();
    log::warning("the thread that reads data did not end within {} s and is left behind", kEndPatience.count());
  }
}

std::vector<Batch> Loader::next_step() {
  std::unique_lock lock(prefetch_->mutex);
  const bool came =
      prefetch_->changed.wait_for(lock, options_.deadline, [&] { return prefetch_->ready || prefetch_->failure; });
  if (!came) {
    throw_internal(
        "no batch came within {} s (comm.timeout_s): reading samples at position {} of data {} hangs (a slow or dead "
        "file system?)",
        static_cast<double>(options_.deadline.count()) / 1000, state_.position, state_.dataset);
  }
  if (prefetch_->failure) std::rethrow_exception(prefetch_->failure);
  std::vector<Batch> batches = std::move(*prefetch_->ready);
  prefetch_->ready.reset();
  prefetch_->changed.notify_all();
  state_.position += step_samples(options_, state_.position);
  return batches;
}

LoaderState Loader::state() const { return state_; }
int64_t Loader::samples_per_epoch() const { return samples_; }
int64_t Loader::global_batch_size() const { return static_cast<int64_t>(step_samples(options_, state_.position)); }
double Loader::epoch() const { return static_cast<double>(state_.position) / static_cast<double>(samples_); }

}  // namespace trireme::data
