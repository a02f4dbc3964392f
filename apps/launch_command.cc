#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "commands.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/status.h"
#include "local_run.h"
#include "options.h"
#include "signals.h"

namespace evenkeel::apps {
namespace {

constexpr int kMaxProcesses = 256;

absl::StatusOr<std::string> Absolute(const std::string& path) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  return absolute.lexically_normal().string();
}

absl::StatusOr<LocalRun> Prepare(LocalJobOptions& options) {
  if (options.workers < 1 && !options.chief_trains) {
    return absl::InvalidArgumentError("--workers 0: nobody would train; give at least 1, or --chief-trains");
  }
  EK_ASSIGN_OR_RETURN(const Experiment experiment, LoadExperiment(options.experiment, options.overrides));
  EK_ASSIGN_OR_RETURN(options.model_dir, Absolute(options.model_dir));
  if (options.log_folder.empty()) options.log_folder = (std::filesystem::path(options.model_dir) / "logs").string();
  for (const std::string& folder : {options.model_dir, options.log_folder}) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return absl::InvalidArgumentError(absl::StrCat("cannot make ", folder, ": ", error.message()));
  }
  options.program_folder = ProgramFolder();
  return LocalRun::Create(options, experiment);
}

int Launch(LocalJobOptions options) {
  absl::StatusOr<LocalRun> run = Prepare(options);
  if (!run.ok()) {
    std::fprintf(stderr, "evenkeel launch: %s\n", std::string(run.status().message()).c_str());
    return static_cast<int>(ExitCodeFor(run.status()));
  }
  const Signals signals([&run](int count, const char*) { run->Interrupt(count); });
  return run->Run();
}

}  // namespace

void AddLaunchCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<LocalJobOptions>();
  CLI::App* command =
      app.add_subcommand("launch", "Runs a whole job on this machine, each role as a process of its own");
  AddExperimentOptions(*command, options->experiment, options->overrides)->required();
  command->add_flag("--chief-trains", options->chief_trains, "The chief is worker rank 0 too");
  command->add_option("--ps", options->servers, "Parameter servers")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, kMaxProcesses));
  command->add_option("--workers", options->workers, "Workers, besides a chief that trains")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, kMaxProcesses));
  command->add_flag("--evaluator", options->evaluator, "An evaluator scores each checkpoint");
  command
      ->add_option("--model-dir", options->model_dir,
                   "The job's folder: outputs, checkpoints; a job that is in it goes on")
      ->required()
      ->type_name("DIR");
  AddDataOption(*command, options->data_folder);
  AddThreadsOption(*command, options->threads);
  command->add_option("--log-dir", options->log_folder, "The processes' logs; else MODEL_DIR/logs")->type_name("DIR");
  AddLogLevelOption(*command, options->log_level);
  command->footer(
      "Ctrl-C stops the job with a checkpoint, a second one ends it at once; the same command goes on from "
      "the last checkpoint. Exit code 0 only if the job finished.");
  command->callback([&chosen, options] { chosen = [options] { return Launch(*options); }; });
}

}  // namespace evenkeel::apps
