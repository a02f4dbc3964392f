#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "commands.h"
#include "evenkeel/config/availability.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/timeline.h"
#include "local_run.h"
#include "options.h"
#include "signals.h"

namespace evenkeel::apps {
namespace {

absl::StatusOr<std::string> Absolute(const std::string& path) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  return absolute.lexically_normal().string();
}

struct Options {
  LocalRunOptions run;
  std::string nnodes, availability;
  int max_workers = 8;
  double monitor_seconds = 0.5, notice_seconds = 0;
};

void Override(LocalJobOptions& job, const std::string& field, int value) {
  job.overrides.push_back(absl::StrCat("membership.", field, "=", value));
}

// "MIN:MAX" or "N": how many workers must and may be there.
absl::Status SetNodes(const std::string& text, LocalRunOptions& run) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  int least = 0, most = 0;
  if (parts.size() > 2 || !absl::SimpleAtoi(parts.front(), &least) || !absl::SimpleAtoi(parts.back(), &most) ||
      least < 1 || most < least || most > kMaxOfRole) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nnodes ", text, ": expected MIN:MAX or N, from 1 to ", kMaxOfRole, ", MIN at most MAX"));
  }
  run.job.workers = most;
  // membership counts a chief that trains.
  const int chief = run.job.chief_trains ? 1 : 0;
  run.least_trainers = least + chief;
  Override(run.job, "workers_min", least + chief);
  Override(run.job, "workers_max", most + chief);
  return absl::OkStatus();
}

absl::Status SetTrace(const Options& options, LocalRunOptions& run) {
  EK_ASSIGN_OR_RETURN(run.trace, LoadAvailability(options.availability));
  const TracePlayer player(run.trace, options.max_workers, run.time_scale);
  run.job.workers = player.places();
  run.job.awaited_workers = player.first_alive();
  run.notice = FromSeconds(options.notice_seconds);
  Override(run.job, "workers_max", player.places() + (run.job.chief_trains ? 1 : 0));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LocalRun>> Prepare(Options& options) {
  LocalRunOptions& run = options.run;
  LocalJobOptions& job = run.job;
  if (!options.nnodes.empty()) EK_RETURN_IF_ERROR(SetNodes(options.nnodes, run));
  if (!options.availability.empty()) EK_RETURN_IF_ERROR(SetTrace(options, run));
  if (job.workers < 1 && !job.chief_trains) {
    return absl::InvalidArgumentError("--workers 0: nobody would train; give at least 1, or --chief-trains");
  }
  EK_ASSIGN_OR_RETURN(const Experiment experiment, LoadExperiment(job.experiment, job.overrides));
  EK_ASSIGN_OR_RETURN(job.model_dir, Absolute(job.model_dir));
  if (job.log_folder.empty()) job.log_folder = (std::filesystem::path(job.model_dir) / "logs").string();
  for (const std::string& folder : {job.model_dir, job.log_folder}) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return absl::InvalidArgumentError(absl::StrCat("cannot make ", folder, ": ", error.message()));
  }
  if (!job.trace.empty()) {
    EK_ASSIGN_OR_RETURN(job.trace, Absolute(job.trace));
    if (const absl::Status begun = BeginTimelineFile(job.trace); !begun.ok()) {
      return absl::InvalidArgumentError(begun.message());
    }
  }
  job.program_folder = ProgramFolder();
  run.monitor_interval = FromSeconds(options.monitor_seconds);
  run.supervisor.jitter_key = RandomNonce();
  return LocalRun::Create(run, experiment);
}

int Launch(Options options) {
  absl::StatusOr<std::unique_ptr<LocalRun>> run = Prepare(options);
  if (!run.ok()) {
    std::fprintf(stderr, "evenkeel launch: %s\n", std::string(run.status().message()).c_str());
    return static_cast<int>(ExitCodeFor(run.status()));
  }
  const Signals signals([&run](int count, const char*) { (*run)->Interrupt(count); });
  const int code = (*run)->Run();
  const std::string& trace = options.run.job.trace;
  if (trace.empty()) return code;
  if (const absl::Status ended = EndTimelineFile(trace); !ended.ok()) {
    std::fprintf(stderr, "evenkeel launch: %s\n", std::string(ended.message()).c_str());
    return code == 0 ? 1 : code;
  }
  return code;
}

void AddWorkerOptions(CLI::App& command, Options& options) {
  CLI::Option* workers =
      command.add_option("--workers", options.run.job.workers, "Workers, besides a chief that trains")
          ->capture_default_str()
          ->type_name("N")
          ->check(CLI::Range(0, kMaxOfRole));
  CLI::Option* nnodes = command
                            .add_option("--nnodes", options.nnodes,
                                        "Workers that must be there and that are started: the job waits below MIN, and "
                                        "ends when fewer are left for good; N is N:N")
                            ->type_name("MIN:MAX")
                            ->excludes(workers);
  CLI::Option* availability =
      command
          .add_option("--availability", options.availability,
                      "Workers come and go as the machines of a spot market did: a trace with lines ms,add|remove,node "
                      "or ms,count, or Parcae's event lists")
          ->type_name("FILE")
          ->excludes(workers)
          ->excludes(nnodes);
  command.add_option("--time-scale", options.run.time_scale, "The trace runs so many times as fast")
      ->capture_default_str()
      ->type_name("X")
      ->check(Within(0.1, 1e6))
      ->needs(availability);
  command.add_option("--max-workers", options.max_workers, "At most so many of the trace's machines are there at once")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, kMaxOfRole))
      ->needs(availability);
  command
      .add_option(
          "--notice", options.notice_seconds,
          "What the cloud gives a machine that it takes: SIGTERM, and SIGKILL so much later; 0: SIGKILL at once")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(Within(0.0, 86400.0))
      ->needs(availability);
}

}  // namespace

void AddLaunchCommand(CLI::App& app, Action& chosen) {
  auto all = std::make_shared<Options>();
  LocalJobOptions* options = &all->run.job;
  CLI::App* command =
      app.add_subcommand("launch", "Runs a whole job on this machine, each role as a process of its own");
  AddExperimentOptions(*command, options->experiment, options->overrides)->required();
  command->add_flag("--chief-trains", options->chief_trains, "The chief is worker rank 0 too");
  command
      ->add_option("--ps", options->servers,
                   absl::StrCat("Parameter servers; at most ", kMaxOfRole, ", also by `evenkeel scale`"))
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, kMaxOfRole));
  AddWorkerOptions(*command, *all);
  command->add_flag("--evaluator", options->evaluator, "An evaluator scores each checkpoint");
  command
      ->add_option("--model-dir", options->model_dir,
                   "The job's folder: outputs, checkpoints; a job that is in it goes on")
      ->required()
      ->type_name("DIR");
  AddDataOption(*command, options->data_folder);
  AddThreadsOption(*command, options->threads);
  AddTraceOption(*command, options->trace);
  command->add_option("--log-dir", options->log_folder, "The processes' logs; else MODEL_DIR/logs")->type_name("DIR");
  AddLogLevelOption(*command, options->log_level);
  AddSupervisorOptions(*command, all->run.supervisor.max_restarts, all->monitor_seconds);
  command->footer(
      "A process that dies is started again, later and later, until it has had its restarts; a minute of good health, "
      "not of waiting in vain, gives them back. Ctrl-C stops the job with a checkpoint, a second one ends it at once; "
      "the same command goes on from the last checkpoint. Exit code 0 only if the job finished.");
  command->callback([&chosen, all] { chosen = [all] { return Launch(*all); }; });
}

}  // namespace evenkeel::apps
