// evenkeel-worker: reads samples, computes gradients, stages them on every server.
#include <memory>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/background.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "evenkeel/transport/transports.h"
#include "evenkeel/worker/experiment_fetch.h"
#include "evenkeel/worker/worker.h"
#include "notice_file.h"
#include "role.h"

namespace evenkeel::apps {
namespace {

absl::Status Run(const RoleSetup& setup, StopSource& stop) {
  std::unique_ptr<NoticeFile> notice;
  if (const std::string& path = setup.options.notice_file; !path.empty()) {
    EK_ASSIGN_OR_RETURN(notice, NoticeFile::Start(path, [&stop](const std::string& text) { stop.Request(text); }));
  }
  const std::unique_ptr<Transport> transport = MakeTransport(ToTransportOptions(setup.options.data_paths));
  absl::StatusOr<Experiment> experiment =
      setup.experiment ? *setup.experiment
                       : FetchExperiment(setup.chief_address, setup.name, *transport, Clock::Real(), stop,
                                         FromSeconds(setup.options.chief_timeout_seconds));
  if (absl::IsCancelled(experiment.status())) {
    LogInfo(absl::StrCat("leaving before it has joined: ", stop.reason()));
    return absl::OkStatus();
  }
  EK_RETURN_IF_ERROR(experiment.status());
  const WorkerOptions worker{*std::move(experiment), setup.name,    setup.index,    setup.chief_address,
                             setup.options.data,     setup.threads, RunInBackground};
  return RunWorker(worker, *transport, Clock::Real(), stop);
}

}  // namespace
}  // namespace evenkeel::apps

int main(int argc, char** argv) {
  using namespace evenkeel::apps;
  return RunRole(
      evenkeel::Role::kWorker,
      "A worker: reads samples and computes gradients. Joins a running job with --chief alone: it fetches the "
      "experiment from there.",
      argc, argv,
      [](CLI::App& app, RoleOptions& options) {
        AddDataOption(app, options.data);
        AddDataPathOption(app, options.data_paths);
        app.add_option("--chief", options.chief,
                       "The chief's address, over the cluster's; without a cluster it joins as an unlisted worker")
            ->type_name("HOST:PORT");
        app.add_option("--chief-timeout-seconds", options.chief_timeout_seconds,
                       "Waits at most so long for the chief to tell the experiment; with --experiment "
                       "membership.chief_timeout_ms rules")
            ->capture_default_str()
            ->check(Within(0.1, 86400.0));
        app.add_option("--notice-file", options.notice_file,
                       "Leaves in good order once this file appears, as before a spot machine is taken away")
            ->type_name("PATH")
            ->envname("EVENKEEL_NOTICE_FILE");
      },
      Run);
}
