#include "role.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/thread_pool.h"
#include "evenkeel/core/timeline.h"
#include "signals.h"

namespace evenkeel::apps {
namespace {

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "host";
}

// Cores shared by the processes that compute and are listed for the host of this one.
int DefaultThreads(Role role, const RoleSetup& setup, const RoleOptions& options) {
  if (!setup.cluster) return AvailableCores();
  const Cluster& cluster = *setup.cluster;
  std::string host = cluster.chief.host;
  const auto at = static_cast<std::size_t>(std::max(0, setup.index));
  if (role == Role::kWorker && at < cluster.workers.size()) host = cluster.workers[at].host;
  if (role == Role::kPs && at < cluster.ps.size()) host = cluster.ps[at].host;
  if (role == Role::kEvaluator && at < cluster.evaluators.size()) host = cluster.evaluators[at].host;
  auto processes = std::count_if(cluster.workers.begin(), cluster.workers.end(),
                                 [&](const HostPort& address) { return address.host == host; });
  const bool chief_trains = options.train || cluster.batch_sizes.size() == cluster.workers.size() + 1;
  if (chief_trains && cluster.chief.host == host) ++processes;
  if (role == Role::kEvaluator) ++processes;
  return std::max(1, AvailableCores() / static_cast<int>(std::max<std::ptrdiff_t>(1, processes)));
}

bool NeedsCluster(Role role) { return role == Role::kChief || role == Role::kPs; }

absl::Status FindTask(Role role, RoleSetup& setup) {
  const Cluster& cluster = *setup.cluster;
  TaskId task{role, 0};
  if (cluster.task) {
    task = *cluster.task;
  } else if (role == Role::kPs || role == Role::kWorker) {
    return absl::InvalidArgumentError(
        absl::StrCat("the cluster does not say which task this process is; give --task ", ToString(role), ":INDEX"));
  }
  if (task.role != role) {
    return absl::InvalidArgumentError(absl::StrCat("the cluster's task is ", task.ToString(), "; evenkeel-",
                                                   ToString(role), " can only be ", ToString(role), ":INDEX"));
  }
  setup.index = task.index;
  setup.name = task.ToString();
  if (role == Role::kChief) setup.own_address = cluster.chief;
  if (role == Role::kPs) setup.own_address = cluster.ps[static_cast<std::size_t>(task.index)];
  return absl::OkStatus();
}

absl::Status FindChief(Role role, RoleSetup& setup) {
  if (role == Role::kChief) return absl::OkStatus();
  if (!setup.options.chief.empty()) {
    EK_ASSIGN_OR_RETURN(const HostPort address, ParseChiefAddress(setup.options.chief));
    setup.chief_address = address.ToString();
  } else if (setup.cluster) {
    if (setup.cluster->chief.port == 0) {
      return absl::InvalidArgumentError("the cluster's chief has port 0; give its real address with --chief");
    }
    setup.chief_address = setup.cluster->chief.ToString();
  } else if (role != Role::kEvaluator) {
    return absl::InvalidArgumentError("where is the chief? give --cluster, TF_CONFIG in the environment, or --chief");
  }
  return absl::OkStatus();
}

absl::Status FindModelDir(Role role, RoleSetup& setup) {
  std::string folder = setup.options.model_dir;
  if (folder.empty() && setup.cluster && role != Role::kPs) folder = setup.cluster->model_dir;
  if (folder.empty()) {
    if (role == Role::kPs || role == Role::kWorker) return absl::OkStatus();
    return absl::InvalidArgumentError("no model_dir: give --model-dir, or model_dir in the cluster file");
  }
  std::error_code error;
  setup.model_dir = std::filesystem::absolute(folder, error).lexically_normal().string();
  if (error) return absl::InvalidArgumentError(absl::StrCat("model_dir ", folder, ": ", error.message()));
  if (std::filesystem::exists(setup.model_dir, error) && !std::filesystem::is_directory(setup.model_dir, error)) {
    return absl::InvalidArgumentError(absl::StrCat("model_dir ", setup.model_dir, " is a file; a folder is needed"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RoleSetup> SetUpRole(Role role, const RoleOptions& options) {
  RoleSetup setup;
  setup.options = options;
  const bool in_environment = std::getenv("TF_CONFIG") != nullptr;
  if (options.cluster || in_environment || NeedsCluster(role)) {
    EK_ASSIGN_OR_RETURN(setup.cluster, LoadCluster(options.cluster, options.task));
    EK_RETURN_IF_ERROR(FindTask(role, setup));
  } else if (options.task) {
    return absl::InvalidArgumentError("--task needs a cluster: give --cluster, or TF_CONFIG in the environment");
  } else {
    setup.name =
        role == Role::kEvaluator ? "evaluator:0" : absl::StrCat(ToString(role), ":", HostName(), "-", getpid());
  }
  EK_RETURN_IF_ERROR(FindChief(role, setup));
  EK_RETURN_IF_ERROR(FindModelDir(role, setup));
  if (!options.experiment.empty()) {
    EK_ASSIGN_OR_RETURN(setup.experiment, LoadExperiment(options.experiment, options.overrides));
  } else if (role != Role::kEvaluator && role != Role::kWorker) {
    return absl::InvalidArgumentError("no experiment: give --experiment FILE");
  } else if (!options.overrides.empty()) {
    return absl::InvalidArgumentError("--set changes an experiment file: give --experiment FILE too");
  }
  setup.threads = options.threads > 0 ? options.threads : DefaultThreads(role, setup, options);
  return setup;
}

int RunRole(Role role, const char* about, int argc, char** argv,
            const std::function<void(CLI::App&, RoleOptions&)>& add_options,
            const std::function<absl::Status(const RoleSetup&, StopSource&)>& run) {
  TuneAllocator();
  StopSource stop;
  Signals signals([&stop](int count, const char* name) {
    if (count > 1) _exit(static_cast<int>(ExitCode::kInterrupted));
    stop.Request(name);
  });
  const std::string program = absl::StrCat("evenkeel-", ToString(role));
  CLI::App app(about, program);
  app.footer(
      "Exit codes: 0 finished, stopped or left in good order; 1 failed while running; 2 wrong input; 3 refused; "
      "4 a deadline passed; 130 interrupted twice.");
  RoleOptions options;
  AddExperimentOptions(app, options.experiment, options.overrides);
  AddClusterOptions(app, options);
  app.add_option("--model-dir", options.model_dir, "The job's folder: checkpoints and outputs, over the cluster's")
      ->type_name("DIR");
  AddThreadsOption(app, options.threads);
  AddLogLevelOption(app, options.log_level);
  if (role != Role::kEvaluator) AddTraceOption(app, options.trace);
  add_options(app, options);
  if (const auto code = ParseCommandLine(app, argc, argv)) return *code;

  const absl::StatusOr<RoleSetup> setup = SetUpRole(role, options);
  InitLog(setup.ok() ? setup->name : std::string(ToString(role)), ToLogLevel(options.log_level));
  absl::Status status = setup.status();
  if (status.ok() && !options.trace.empty()) status = StartTimeline(options.trace, setup->name);
  if (absl::IsUnavailable(status)) status = absl::InvalidArgumentError(status.message());
  if (status.ok()) status = run(*setup, stop);
  EndTimeline();
  if (!status.ok()) LogError(std::string(status.message()));
  return static_cast<int>(ExitCodeFor(status));
}

std::string ListenAddress(const RoleSetup& setup) {
  HostPort address = setup.own_address;
  if (!setup.options.bind_host.empty()) address.host = setup.options.bind_host;
  return address.ToString();
}

absl::Status ListenErrorIsInput(const absl::Status& status) {
  return absl::IsUnavailable(status) ? absl::InvalidArgumentError(status.message()) : status;
}

}  // namespace evenkeel::apps
