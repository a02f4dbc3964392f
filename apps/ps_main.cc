// evenkeel-ps: holds a part of the parameters and their optimizer slots.
#include <algorithm>

#include "evenkeel/core/background.h"
#include "evenkeel/core/status.h"
#include "evenkeel/runtime/ps_runner.h"
#include "evenkeel/transport/transports.h"
#include "role.h"

namespace evenkeel::apps {
namespace {

absl::Status Run(const RoleSetup& setup, StopSource& stop) {
  PsOptions ps;
  ps.name = setup.name;
  ps.index = setup.index;
  ps.chief_address = setup.chief_address;
  ps.listen_address = ListenAddress(setup);
  ps.advertised_host = setup.own_address.host;
  ps.experiment_json = setup.experiment->canonical_json;
  ps.spec_hash = setup.experiment->spec_hash;
  ps.model_dir = setup.model_dir;
  ps.chief_timeout = setup.experiment->membership.chief_timeout;
  ps.stop_grace = setup.experiment->membership.drain;
  ps.threads = setup.threads;
  ps.on_left = RunInBackground;
  const std::unique_ptr<Transport> transport = MakeTransport(ToTransportOptions(setup.options.data_paths));
  return ListenErrorIsInput(RunPs(ps, *transport, Storage::Posix(), Clock::Real(), stop));
}

}  // namespace
}  // namespace evenkeel::apps

int main(int argc, char** argv) {
  using namespace evenkeel::apps;
  return RunRole(
      evenkeel::Role::kPs, "A parameter server: holds a part of the parameters and their optimizer slots.", argc, argv,
      [](CLI::App& app, RoleOptions& options) {
        app.add_option("--chief", options.chief, "The chief's address, over the cluster's")->type_name("HOST:PORT");
        app.add_option("--bind-host", options.bind_host, "Listens here instead of the cluster's host")
            ->type_name("HOST");
        AddDataPathOption(app, options.data_paths);
      },
      Run);
}
