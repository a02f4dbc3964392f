#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "agent_run.h"
#include "commands.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "options.h"
#include "signals.h"

namespace evenkeel::apps {
namespace {

constexpr int kMaxProcesses = 256;
constexpr int kMaxRestarts = 1000000;

struct Options {
  AgentTasksOptions tasks;
  int max_restarts = 3;
  double monitor_seconds = 1, grace_seconds = 15;
};

absl::StatusOr<std::unique_ptr<AgentRun>> Prepare(Options& options) {
  AgentTasksOptions& tasks = options.tasks;
  tasks.program_folder = ProgramFolder();
  // A mistake in the experiment is told once, not by each process.
  if (tasks.program.empty() && !tasks.experiment.empty()) {
    EK_RETURN_IF_ERROR(LoadExperiment(tasks.experiment, tasks.overrides).status());
  }
  AgentRunOptions run;
  EK_ASSIGN_OR_RETURN(run.tasks, MakeAgentTasks(tasks));
  if (!tasks.log_folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(tasks.log_folder, error);
    if (error) {
      return absl::InvalidArgumentError(absl::StrCat("cannot make ", tasks.log_folder, ": ", error.message()));
    }
  }
  run.supervisor.max_restarts = options.max_restarts;
  run.supervisor.jitter_key = RandomNonce();
  run.grace = FromSeconds(options.grace_seconds);
  run.monitor_interval = FromSeconds(options.monitor_seconds);
  run.asks_chief = tasks.program.empty();
  return AgentRun::Create(run);
}

int Agent(Options options) {
  absl::StatusOr<std::unique_ptr<AgentRun>> run = Prepare(options);
  if (!run.ok()) {
    std::fprintf(stderr, "evenkeel agent: %s\n", std::string(run.status().message()).c_str());
    return static_cast<int>(ExitCodeFor(run.status()));
  }
  const Signals signals([&run](int count, const char*) { (*run)->Interrupt(count); });
  return (*run)->Run();
}

}  // namespace

void AddSupervisorOptions(CLI::App& app, int& max_restarts, double& monitor_seconds) {
  app.add_option("--max-restarts", max_restarts,
                 "How often a process that dies is started again, until it has run for a minute; 0: never")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, kMaxRestarts));
  app.add_option("--monitor-interval", monitor_seconds, "How often the job is asked how it stands")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(Within(0.05, 3600.0));
}

void AddAgentCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  AgentTasksOptions& tasks = options->tasks;
  CLI::App* command =
      app.add_subcommand("agent", "Starts this machine's part of a job, watches it, and starts again what dies");
  AddExperimentOptions(*command, tasks.experiment, tasks.overrides);
  command->add_option("--cluster", tasks.cluster, "The cluster file; without it TF_CONFIG is read")->type_name("FILE");
  command
      ->add_option("--task", tasks.tasks,
                   "A task of the cluster that runs here; may be given several times. Without it: all tasks that the "
                   "cluster lists for this machine")
      ->type_name("TYPE:INDEX")
      ->allow_extra_args(false);
  command->add_option("--role", tasks.role, "Only tasks of this role: chief, ps, worker or evaluator")
      ->type_name("TYPE");
  command->add_option("--chief", tasks.chief, "The chief's address, for workers that no cluster lists")
      ->type_name("HOST:PORT");
  command
      ->add_option("--nproc,--workers", tasks.count,
                   "With --chief: so many workers; with a program: so many of it, tasks 0 to N-1 of the role")
      ->type_name("N")
      ->check(CLI::Range(1, kMaxProcesses));
  command->add_flag("--train", tasks.train, "The chief also trains, as worker rank 0");
  command->add_option("--model-dir", tasks.model_dir, "The job's folder, over the cluster's")->type_name("DIR");
  AddDataOption(*command, tasks.data);
  AddThreadsOption(*command, tasks.threads);
  AddSupervisorOptions(*command, options->max_restarts, options->monitor_seconds);
  command->add_option("--grace", options->grace_seconds, "What a process has to leave in, before it is killed")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(Within(0.0, 86400.0));
  command->add_option("--log-dir", tasks.log_folder, "A file for each process's output; else all goes to this one's")
      ->type_name("DIR");
  AddLogLevelOption(*command, tasks.log_level);
  command->add_option("program", tasks.program,
                      "After --: a program of yours and its arguments, run with TF_CONFIG set");
  command->footer(
      "On each machine:  evenkeel agent --cluster cluster.json --experiment exp.json\n"
      "More workers:     evenkeel agent --chief HOST:PORT --workers 2\n"
      "Your own program: evenkeel agent --cluster cluster.json --task worker:0 -- ./my_worker --fast\n"
      "SIGTERM lets all leave and gives exit code 0 if they did; a second one kills them.");
  command->callback([&chosen, options] { chosen = [options] { return Agent(*options); }; });
}

}  // namespace evenkeel::apps
