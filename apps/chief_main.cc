// evenkeel-chief: coordinates a job; with --train it is worker rank 0 too.
#include <unistd.h>

#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "evenkeel/runtime/chief_runner.h"
#include "evenkeel/transport/transports.h"
#include "evenkeel/worker/worker.h"
#include "role.h"

namespace evenkeel::apps {
namespace {

void ReportPort(int descriptor, int port) {
  if (descriptor < 0) return;
  const std::string line = absl::StrCat(port, "\n");
  if (write(descriptor, line.data(), line.size()) < 0) LogWarning("--ready-fd cannot be written to");
  close(descriptor);
}

// A wildcard address is listened on, not connected to.
std::string OwnAddress(const RoleSetup& setup, int port) {
  HostPort address = setup.own_address;
  if (!setup.options.bind_host.empty()) address.host = setup.options.bind_host;
  if (address.host == "0.0.0.0") address.host = "127.0.0.1";
  if (address.host == "::") address.host = "::1";
  address.port = port;
  return address.ToString();
}

absl::Status Run(const RoleSetup& setup, StopSource& stop) {
  EK_RETURN_IF_ERROR(CheckBatchSizes(*setup.cluster, setup.options.train));
  EK_RETURN_IF_ERROR(CheckExperimentFits(*setup.experiment, *setup.cluster, setup.options.train));
  ChiefRunnerOptions chief;
  chief.experiment = *setup.experiment;
  chief.listen_address = ListenAddress(setup);
  chief.model_dir = setup.model_dir;
  chief.servers = static_cast<std::uint32_t>(setup.cluster->ps.size());
  if (setup.options.train) chief.listed_workers.push_back("chief:0");
  for (std::size_t i = 0; i < setup.cluster->workers.size(); ++i) {
    chief.listed_workers.push_back(absl::StrCat("worker:", i));
  }
  chief.batch_sizes = setup.cluster->batch_sizes;
  chief.expects_evaluator = setup.options.evaluator || !setup.cluster->evaluators.empty();

  const std::unique_ptr<Transport> transport = MakeTransport(ToTransportOptions(setup.options.data_paths));
  // Its worker hears of the job's end from the chief, as all workers do; this only ends it where the chief failed.
  StopSource worker_stop;
  absl::Status worker_status;
  std::thread worker;
  chief.on_listening = [&](int port) {
    ReportPort(setup.options.ready_fd, port);
    if (!setup.options.train) return;
    WorkerOptions options{*setup.experiment, "chief:0", 0, OwnAddress(setup, port), setup.options.data, setup.threads};
    worker = std::thread([&, options = std::move(options)] {
      worker_status = RunWorker(options, *transport, Clock::Real(), worker_stop);
      if (!worker_status.ok() && !absl::IsAborted(worker_status)) {
        stop.Request(absl::StrCat("the chief's own worker failed: ", worker_status.message()));
      }
    });
  };
  const absl::Status status = ListenErrorIsInput(RunChief(chief, *transport, Storage::Posix(), Clock::Real(), stop));
  worker_stop.Request("the chief has ended");
  if (worker.joinable()) worker.join();
  return status.ok() && !absl::IsAborted(worker_status) ? worker_status : status;
}

}  // namespace
}  // namespace evenkeel::apps

int main(int argc, char** argv) {
  using namespace evenkeel::apps;
  return RunRole(
      evenkeel::Role::kChief, "Coordinates a training job: members, samples, commits, checkpoints, outputs.", argc,
      argv,
      [](CLI::App& app, RoleOptions& options) {
        AddDataOption(app, options.data);
        AddDataPathOption(app, options.data_paths);
        app.add_flag("--train", options.train, "Also trains, as worker rank 0");
        app.add_flag("--evaluator", options.evaluator, "An evaluator takes part though the cluster lists none");
        app.add_option("--bind-host", options.bind_host, "Listens here instead of the cluster's host")
            ->type_name("HOST");
        app.add_option("--ready-fd", options.ready_fd, "Writes the port and a newline here once it listens")
            ->type_name("N");
      },
      Run);
}
