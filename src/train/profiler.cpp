#include "train/profiler.h"

#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "base/profile.h"
#include "observe/step_profile.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const config::Config& config) { return config.run.dir / "profile"; }

// A profile of more ranks than these would stay in part.
void remove_older(const fs::path& folder) {
  make_directories(folder);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("profile-rank") || name.starts_with("trace-rank")) fs::remove(entry.path());
  }
}

// What is written here is not worth a run: a failure is told, and training goes on.
template <typename Write>
void try_to(const Write& write) {
  try {
    write();
  } catch (const std::exception& error) {
    log::warning("the profile is not written: {}", error.what());
  }
}

}  // namespace

Profiler::Profiler(const Session& session, double matmul_rate, std::function<void(const std::string&)> say)
    : session_(session), matmul_rate_(matmul_rate), say_(std::move(say)) {}

Profiler::~Profiler() {
  if (aten_) profile::stop();
}

void Profiler::begin_step() {
  const config::ProfileConfig& config = session_.config.profile;
  if (begun_++ != config.warmup_steps || config.steps == 0) return;
  profile::name_this_thread("step");
  aten_ = std::make_unique<observe::AtenEvents>();
  profile::start();
}

void Profiler::end_step(int64_t tokens) {
  if (!aten_) return;
  tokens_ += tokens / session_.mesh->data().size();
  if (++recorded_ == session_.config.profile.steps) report();
}

void Profiler::finish() {
  const config::ProfileConfig& config = session_.config.profile;
  if (aten_) report();
  if (config.steps > recorded_)
    say_(fmt::format(
        "the run ended after {} of the {} steps of its profile; it begins after {} steps of each call of the "
        "program (profile.warmup_steps)",
        recorded_, config.steps, config.warmup_steps));
}

void Profiler::report() {
  const std::vector<profile::Thread> threads = profile::stop();
  aten_.reset();
  const config::Config& config = session_.config;
  observe::StepProfile profile;
  profile.rank = session_.mesh->rank();
  profile.ranks = session_.mesh->size();
  profile.model_flops =
      static_cast<double>(tokens_) *
      describe::model_flops_per_token(config.model, config.train.seq_len, describe::AttentionFlops::causal);
  profile.matmul_flops_per_second = matmul_rate_;
  add_events(profile, threads);

  const fs::path folder = folder_of(config);
  if (session_.first_rank()) try_to([&] { remove_older(folder); });
  session_.mesh->world().barrier();
  const auto file = [&](const char* what) { return folder / fmt::format("{}-rank{}.json", what, profile.rank); };
  try_to([&] {
    write_file_durably(file("profile"), observe::to_json(profile));
    write_file_durably(file("trace"), observe::to_trace(profile, threads));
  });
  if (session_.first_rank())
    say_(fmt::format("{}\n{} for ui.perfetto.dev", observe::to_text(profile), file("trace").string()));
}

}  // namespace trireme::train
