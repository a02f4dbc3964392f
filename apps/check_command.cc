#include <cstdio>
#include <memory>

#include "checks.h"
#include "commands.h"
#include "evenkeel/core/status.h"
#include "options.h"

namespace evenkeel::apps {
namespace {

struct Options {
  RoleOptions role;
  bool chief_trains = false;
};

// Prints one line a check.
class Report {
 public:
  void Add(const char* name, const absl::StatusOr<std::string>& result) {
    if (!result.ok()) wrong_ = true;
    const std::string text = result.ok() ? *result : std::string(result.status().message());
    std::printf("%-6s %-10s %s\n", result.ok() ? "ok" : "wrong", name, text.c_str());
  }
  bool wrong() const { return wrong_; }

 private:
  bool wrong_ = false;
};

int Check(const Options& options) {
  Report report;
  const auto cluster = LoadCluster(options.role.cluster, options.role.task);
  report.Add("cluster", cluster.ok() ? DescribeCluster(*cluster, options.chief_trains)
                                     : absl::StatusOr<std::string>(cluster.status()));
  const auto experiment = LoadExperiment(options.role.experiment, options.role.overrides);
  absl::Status fits = experiment.status();
  if (fits.ok() && cluster.ok()) fits = CheckExperimentFits(*experiment, *cluster, options.chief_trains);
  report.Add("experiment", fits.ok() ? DescribeExperiment(*experiment, cluster, options.chief_trains)
                                     : absl::StatusOr<std::string>(std::move(fits)));
  if (cluster.ok()) {
    report.Add("addresses", CheckAddresses(*cluster));
    report.Add("ports", CheckPorts(*cluster));
  }
  if (experiment.ok()) {
    const auto data = OpenTrainingData(experiment->input, options.role.data);
    report.Add("data", DescribeData(*experiment, data, options.role.data));
    if (data.ok()) {
      const auto bytes = BuildModel(*experiment, *data->dataset);
      report.Add("model", bytes.ok() ? DescribeModel(*bytes) : absl::StatusOr<std::string>(bytes.status()));
      if (bytes.ok() && cluster.ok()) {
        report.Add("memory", CheckMemory(*experiment, *cluster, options.chief_trains, *bytes));
      }
    }
  }
  std::string model_dir = options.role.model_dir;
  if (model_dir.empty() && cluster.ok()) model_dir = cluster->model_dir;
  if (cluster.ok() || !model_dir.empty()) report.Add("model_dir", CheckModelDir(model_dir));
  return report.wrong() ? static_cast<int>(ExitCode::kWrongInput) : 0;
}

}  // namespace

void AddCheckCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("check", "Validates cluster, experiment, data and folders without running anything");
  AddClusterOptions(*command, options->role);
  AddExperimentOptions(*command, options->role.experiment, options->role.overrides)->required();
  command->add_flag("--chief-trains", options->chief_trains, "The chief will train (evenkeel-chief --train)");
  command->add_option("--model-dir", options->role.model_dir, "The job's folder, over the cluster's")->type_name("DIR");
  AddDataOption(*command, options->role.data);
  command->callback([&chosen, options] { chosen = [options] { return Check(*options); }; });
}

}  // namespace evenkeel::apps
