// What a role's process is made of: experiment, cluster, its task, and how it ends.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/config/cluster.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/role.h"
#include "evenkeel/core/stop.h"
#include "options.h"

namespace evenkeel::apps {

struct RoleSetup {
  RoleOptions options;
  std::optional<Experiment> experiment;  // absent for an evaluator alone, and for a worker that knows only --chief
  std::optional<Cluster> cluster;        // absent: --chief alone, or an evaluator alone on a model_dir
  int index = -1;                        // in the cluster; -1: not listed
  std::string name;                      // "worker:1"; unlisted: "worker:HOST-PID"
  HostPort own_address;                  // from the cluster, for chief and ps
  std::string chief_address;             // empty: an evaluator alone
  std::string model_dir;                 // absolute; may be empty for ps and worker
  int threads = 1;
};

// Errors: kInvalidArgument and kNotFound for command line, cluster and experiment.
absl::StatusOr<RoleSetup> SetUpRole(Role role, const RoleOptions& options);

// main() of a role: signals, command line, log, `run`, exit code. `add_options` adds the role's own.
int RunRole(Role role, const char* about, int argc, char** argv,
            const std::function<void(CLI::App&, RoleOptions&)>& add_options,
            const std::function<absl::Status(const RoleSetup&, StopSource&)>& run);

// --bind-host's or the cluster's host, with the cluster's port.
std::string ListenAddress(const RoleSetup& setup);

// An address that cannot be listened on is wrong input, though the transport calls it unavailable.
absl::Status ListenErrorIsInput(const absl::Status& status);

}  // namespace evenkeel::apps
