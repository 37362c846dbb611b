#include "comm/launch_environment.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace trireme::comm {
namespace {

// Collects faults instead of throwing at the first.
class Reader {
 public:
  explicit Reader(const Getenv& getenv) : getenv_(getenv) {}

  std::optional<std::string> text(const char* name) const {
    const char* value = getenv_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }
  bool has(const char* name) const { return text(name).has_value(); }

  /// The number in `name`; a fault when it is absent and there is no `otherwise`, or is no number of at least `least`.
  int64_t number(const char* name, int64_t least, std::optional<int64_t> otherwise = std::nullopt) {
    const auto value = text(name);
    if (!value) {
      if (!otherwise) fault(fmt::format("{} is not set", name));
      return otherwise.value_or(least);
    }
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
    if (error != std::errc{} || end != value->data() + value->size() || number < least) {
      fault(fmt::format("{} = {}: expected a whole number of at least {}", name, *value, least));
      return otherwise.value_or(least);
    }
    return number;
  }
  void fault(std::string text) { faults_.push_back(std::move(text)); }
  std::vector<std::string> take_faults() { return std::move(faults_); }

 private:
  const Getenv& getenv_;
  std::vector<std::string> faults_;
};

// Where the workers meet, when the launcher says nothing of it: rank 0's host, and a port made from the job's number so
// that two jobs on one host rarely meet.
void rendezvous_of_job(Reader& reader, LaunchEnvironment& environment, const char* job,
                       std::optional<std::string> host) {
  environment.master_addr = reader.text("MASTER_ADDR").value_or(host.value_or(""));
  if (environment.master_addr.empty()) {
    // On several machines it stays empty: comm.backend = mpi needs no address, and whoever does asks for one.
    if (environment.world_size == environment.local_world_size) environment.master_addr = "127.0.0.1";
  }
  uint64_t number = 0;
  for (const char c : reader.text(job).value_or("0")) number = number * 31 + static_cast<unsigned char>(c);
  environment.master_port = reader.number("MASTER_PORT", 1, static_cast<int64_t>(20000 + number % 10000));
}

}  // namespace

std::string first_host(const std::string& node_list) {
  // host[,host]... where a host may hold one or more bracketed lists of numbers and ranges: a[1-3,7]b, of which the
  // first is the first number of each.
  std::string host;
  for (size_t i = 0; i < node_list.size(); ++i) {
    const char c = node_list[i];
    if (c == ',') break;
    if (c != '[') {
      host += c;
      continue;
    }
    const size_t close = node_list.find(']', i);
    const size_t end = node_list.find_first_of("-,]", i + 1);
    if (close == std::string::npos || end == i + 1) throw_input("cannot read the Slurm node list {}", node_list);
    host += node_list.substr(i + 1, end - i - 1);
    i = close;
  }
  if (host.empty()) throw_input("cannot read the Slurm node list \"{}\"", node_list);
  return host;
}

LaunchEnvironment detect_environment() {
  return detect_environment([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

LaunchEnvironment detect_environment(const Getenv& getenv) {
  Reader reader(getenv);
  LaunchEnvironment e;
  // srun sets PMI_RANK too, for whichever MPI library; the mpirun of MPICH alone sets this one beside it.
  const bool by_hydra = reader.has("PMI_RANK") && reader.has("MPI_LOCALNRANKS");
  if (reader.has("RANK") || reader.has("WORLD_SIZE")) {
    e.launcher = "torchrun";
    e.rank = reader.number("RANK", 0);
    e.world_size = reader.number("WORLD_SIZE", 1);
    e.local_rank = reader.number("LOCAL_RANK", 0, e.rank);
    e.local_world_size = reader.number("LOCAL_WORLD_SIZE", 1, e.world_size);
    if (e.world_size > 1) {
      e.master_addr = reader.text("MASTER_ADDR").value_or("");
      if (e.master_addr.empty()) reader.fault("MASTER_ADDR is not set: give the host of rank 0");
      e.master_port = reader.number("MASTER_PORT", 0);
    }
    const std::string agent = reader.text("TORCHELASTIC_USE_AGENT_STORE").value_or("");
    e.agent_store = agent == "True" || agent == "true" || agent == "1";
    if (e.agent_store && e.world_size > 1 && e.master_port == 0) {
      reader.fault("MASTER_PORT = 0 does not go with TORCHELASTIC_USE_AGENT_STORE = True: the agent's port is fixed");
    }
    e.run_id = fmt::format("{}/{}", reader.text("TORCHELASTIC_RUN_ID").value_or("0"),
                           reader.text("TORCHELASTIC_RESTART_COUNT").value_or("0"));
    // mpirun in an allocation of Slurm's inherits the variables of the batch script, so it is asked for first.
  } else if (reader.has("OMPI_COMM_WORLD_RANK") || reader.has("OMPI_COMM_WORLD_SIZE")) {
    e.launcher = "openmpi";
    e.rank = reader.number("OMPI_COMM_WORLD_RANK", 0);
    e.world_size = reader.number("OMPI_COMM_WORLD_SIZE", 1);
    e.local_rank = reader.number("OMPI_COMM_WORLD_LOCAL_RANK", 0, e.rank);
    e.local_world_size = reader.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, e.world_size);
    const char* job = reader.has("PMIX_NAMESPACE") ? "PMIX_NAMESPACE" : "OMPI_MCA_ess_base_jobid";
    if (e.world_size > 1) rendezvous_of_job(reader, e, job, std::nullopt);
    e.run_id = reader.text(job).value_or("0");
  } else if (!by_hydra && reader.has("SLURM_PROCID") &&
             (reader.has("SLURM_STEP_NUM_TASKS") || reader.has("SLURM_NTASKS"))) {
    e.launcher = "slurm";
    e.rank = reader.number("SLURM_PROCID", 0);
    e.world_size = reader.number(reader.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", 1);
    e.local_rank = reader.number("SLURM_LOCALID", 0, e.rank);
    const int64_t nodes = reader.number("SLURM_NNODES", 1, 1);
    e.local_world_size = nodes == 1 ? e.world_size : reader.number("SLURM_NTASKS_PER_NODE", 1, e.world_size / nodes);
    if (e.world_size > 1) {
      auto list = reader.text("SLURM_STEP_NODELIST");
      if (!list) list = reader.text("SLURM_JOB_NODELIST");
      if (!list) list = reader.text("SLURM_NODELIST");
      try {
        rendezvous_of_job(reader, e, "SLURM_JOB_ID", list ? std::optional(first_host(*list)) : std::nullopt);
      } catch (const InputError& error) {
        reader.fault(error.what());
      }
    }
    e.run_id =
        fmt::format("{}.{}", reader.text("SLURM_JOB_ID").value_or("0"), reader.text("SLURM_STEP_ID").value_or("0"));
  } else if (reader.has("PMI_RANK") || reader.has("PMI_SIZE")) {
    e.launcher = "mpich";
    e.rank = reader.number("PMI_RANK", 0);
    e.world_size = reader.number("PMI_SIZE", 1);
    e.local_rank = reader.number("MPI_LOCALRANKID", 0, e.rank);
    e.local_world_size = reader.number("MPI_LOCALNRANKS", 1, e.world_size);
    if (e.world_size > 1) rendezvous_of_job(reader, e, "HYDI_CONTROL_FD", std::nullopt);
  }
  if (e.rank >= e.world_size)
    reader.fault(fmt::format("rank {} of a world of {}: ranks are 0 to {}", e.rank, e.world_size, e.world_size - 1));
  if (e.local_world_size > e.world_size) {
    reader.fault(fmt::format("{} ranks on this machine, but {} in the world", e.local_world_size, e.world_size));
  }
  if (e.local_rank >= e.local_world_size) {
    reader.fault(fmt::format("local rank {} of {} on this machine", e.local_rank, e.local_world_size));
  }
  if (e.master_port > 65535) reader.fault(fmt::format("MASTER_PORT = {}: ports end at 65535", e.master_port));
  auto faults = reader.take_faults();
  if (!faults.empty()) {
    for (std::string& fault : faults) fault = "environment of the launcher (" + e.launcher + "): " + fault;
    throw InputError(std::move(faults));
  }
  return e;
}

}  // namespace trireme::comm
