// The parts of a training run, built once and passed to the functions that make a run of them: step, evaluate, save,
// resume.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "config/config.h"
#include "config/named_path.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "models/model.h"
#include "optim/adamw.h"
#include "optim/ema.h"
#include "optim/loss_scaler.h"
#include "optim/spike_guard.h"
#include "parallel/data_parallel.h"
#include "train/choice_scores.h"

namespace trireme::train {

/// Where a run stands; all of it is in a checkpoint.
struct Progress {
  int64_t step = 0;    ///< finished steps
  int64_t tokens = 0;  ///< tokens trained on so far, over all ranks
};

/// Text that is evaluated and never trained on.
struct HeldOut {
  std::string name;  ///< in eval.sets; empty: data.eval_path
  std::shared_ptr<const data::Dataset> dataset;
};

struct Session {
  config::Config config;     ///< resolved for this world
  int64_t accumulation = 1;  ///< micro-batches of a full step on each rank; see config/batch_ramp.h
  at::Device device = at::kCPU;
  std::shared_ptr<comm::Mesh> mesh;
  std::shared_ptr<const data::Dataset> dataset;
  std::vector<HeldOut> held_out;
  std::vector<ChoiceSuite> choices;                 ///< eval.choices
  std::unique_ptr<memory::FileTensors> state_file;  ///< optimizer.offload = "disk"; null: none. Outlives what is in it
  std::unique_ptr<models::Model> model;
  std::unique_ptr<parallel::DataParallel> data_parallel;
  std::unique_ptr<optim::Adamw> optimizer;
  std::shared_ptr<nn::ActivationStore> offload;  ///< null: activations stay where they are
  std::unique_ptr<optim::Ema> ema;               ///< null: none
  std::unique_ptr<optim::LossScaler> loss_scaler;
  std::unique_ptr<optim::SpikeGuard> spike_guard;
  std::unique_ptr<data::Loader> loader;
  Progress progress;

  bool first_rank() const { return mesh->rank() == 0; }
};

/// data.eval_path, when there is one, without a name; then eval.sets.
std::vector<config::NamedPath> held_out_sets(const config::Config& config);
/// eval.choices.
std::vector<config::NamedPath> choice_files(const config::Config& config);

/// The type of activations.
at::ScalarType activation_type(config::Precision precision);
/// The mesh of a resolved config. Collective in effect; InputError for an order that does not list the axes.
std::shared_ptr<comm::Mesh> make_mesh(std::shared_ptr<comm::Communicator> world,
                                      const config::ParallelConfig& parallel);

/// cpu, or cuda where this build and machine have it; InputError otherwise.
at::Device choose_device(config::Device device);

/// Builds everything but the initial weights and the loader, which a checkpoint may give (see checkpointing.h). Data
/// that does not fit the model is refused here.
std::unique_ptr<Session> make_session(const config::Config& config, int64_t accumulation,
                                      std::shared_ptr<comm::Mesh> mesh);

/// Starts the loader at `state`.
void start_loader(Session& session, const data::LoaderState& state);

}  // namespace trireme::train
