// What an agent runs on its machine, as commands and environments.
//
// Threading: none. Reads the cluster file or TF_CONFIG, and asks the system which addresses are this machine's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/config/cluster.h"
#include "evenkeel/launch/process_group.h"
#include "evenkeel/launch/supervisor.h"

namespace evenkeel::apps {

struct AgentTasksOptions {
  std::optional<std::string> cluster;  // file; else TF_CONFIG
  std::vector<std::string> tasks;      // TYPE:INDEX
  std::string role;                    // of the tasks that are not named one by one; empty: all
  int count = 0;                       // 0: not given
  std::string chief;                   // HOST:PORT, for workers that no cluster lists
  std::string experiment, model_dir, data, log_folder;
  std::vector<std::string> overrides;
  bool train = false;  // the chief
  int threads = 0;
  std::string log_level = "info";
  std::string program_folder;        // of the roles
  std::vector<std::string> program;  // a program of the user's; empty: Evenkeel's own roles
};

struct AgentTask {
  ProcessSpec spec;
  RestartOn policy = RestartOn::kFailure;
};

struct AgentTasks {
  std::vector<AgentTask> tasks;  // at least one
  std::string chief_address;     // empty: unknown
};

// Which tasks: those named; else `count` of `role`, from index 0 on, for a program; else `count` workers that no
// cluster lists, at `chief`; else all that the cluster lists for this machine. Errors: kInvalidArgument and kNotFound,
// naming option, file or task, and what would be right.
absl::StatusOr<AgentTasks> MakeAgentTasks(const AgentTasksOptions& options);

}  // namespace evenkeel::apps
