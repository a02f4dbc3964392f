// The cluster file (TF_CONFIG): who takes part, and which of them this process is.
//
// Threading: none; pure but for the file or environment variable that LoadCluster reads.
// Errors:    kInvalidArgument names the origin, the JSON path, the offending value and what is allowed; kNotFound.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/role.h"

namespace evenkeel {

struct HostPort {
  std::string host;              // name, IPv4, or IPv6 without brackets
  int port = 0;                  // 0: any free port
  std::string ToString() const;  // "[::1]:2222" for IPv6
  friend bool operator==(const HostPort&, const HostPort&) = default;
};
// "host:port", "[v6]:port". Errors: kInvalidArgument with the text and what would be right.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);
// Of a chief that listens already: with its real port. Errors: kInvalidArgument, as --chief's.
absl::StatusOr<HostPort> ParseChiefAddress(std::string_view text);

struct TaskId {
  Role role = Role::kWorker;
  int index = 0;
  std::string ToString() const;  // "worker:1"
  friend bool operator==(const TaskId&, const TaskId&) = default;
};
absl::StatusOr<TaskId> ParseTask(std::string_view text);  // "worker:1"; "master" is "chief"

struct Cluster {
  HostPort chief;
  std::vector<HostPort> ps, workers, evaluators;
  std::optional<TaskId> task;
  std::string environment;
  std::string model_dir;
  std::vector<std::int64_t> batch_sizes;  // batch_size_list: none, or one a training task, the chief first
};

// `json`: TF_CONFIG's text. `origin` names it in errors ("TF_CONFIG", a path). `task` overrides the text's task.
// Errors: kInvalidArgument, "TF_CONFIG: task.index: 7 is out of range; the cluster lists 2 workers (0 to 1)".
absl::StatusOr<Cluster> ParseCluster(std::string_view json, std::string_view origin, std::optional<std::string> task);
// From `file` where given, else from the environment variable TF_CONFIG.
absl::StatusOr<Cluster> LoadCluster(const std::optional<std::string>& file, const std::optional<std::string>& task);
// batch_size_list has one entry a training task.
absl::Status CheckBatchSizes(const Cluster& cluster, bool chief_trains);
// What of an experiment depends on how many train: batching.speeds has one entry a training task, and
// train.sync.backup_workers leaves at least one.
absl::Status CheckExperimentFits(const Experiment& experiment, const Cluster& cluster, bool chief_trains);

}  // namespace evenkeel
