// evenkeel-evaluator: scores checkpoints, beside a job or alone on a model_dir.
#include "evenkeel/core/status.h"
#include "evenkeel/evaluator/evaluator.h"
#include "evenkeel/transport/transports.h"
#include "role.h"

namespace evenkeel::apps {
namespace {

absl::Status Run(const RoleSetup& setup, StopSource& stop) {
  EvaluatorOptions evaluator;
  evaluator.experiment = setup.experiment;
  evaluator.model_dir = setup.model_dir;
  evaluator.name = setup.name;
  evaluator.chief_address = setup.chief_address;
  evaluator.data_folder = setup.options.data;
  evaluator.threads = setup.threads;
  const std::unique_ptr<Transport> transport = MakeGrpcTransport({});
  return RunEvaluator(evaluator, *transport, Storage::Posix(), Clock::Real(), stop);
}

}  // namespace
}  // namespace evenkeel::apps

int main(int argc, char** argv) {
  using namespace evenkeel::apps;
  return RunRole(
      evenkeel::Role::kEvaluator,
      "Scores checkpoints and keeps the best. With --model-dir alone it follows a job's folder, live or finished.",
      argc, argv,
      [](CLI::App& app, RoleOptions& options) {
        AddDataOption(app, options.data);
        app.add_option("--chief", options.chief, "The chief's address, over the cluster's")->type_name("HOST:PORT");
      },
      Run);
}
