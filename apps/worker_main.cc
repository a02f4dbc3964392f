// evenkeel-worker: reads samples, computes gradients, stages them on every server.
#include "evenkeel/core/status.h"
#include "evenkeel/transport/transports.h"
#include "evenkeel/worker/worker.h"
#include "role.h"

namespace evenkeel::apps {
namespace {

absl::Status Run(const RoleSetup& setup, StopSource& stop) {
  const WorkerOptions worker{*setup.experiment,   setup.name,         setup.index,
                             setup.chief_address, setup.options.data, setup.threads};
  const std::unique_ptr<Transport> transport = MakeGrpcTransport({});
  return RunWorker(worker, *transport, Clock::Real(), stop);
}

}  // namespace
}  // namespace evenkeel::apps

int main(int argc, char** argv) {
  using namespace evenkeel::apps;
  return RunRole(
      evenkeel::Role::kWorker,
      "A worker: reads samples and computes gradients. Joins a running job with --chief alone.", argc, argv,
      [](CLI::App& app, RoleOptions& options) {
        AddDataOption(app, options.data);
        app.add_option("--chief", options.chief,
                       "The chief's address; without a cluster it joins as an unlisted worker")
            ->type_name("HOST:PORT");
      },
      Run);
}
