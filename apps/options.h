// What the command lines of all programs share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "evenkeel/core/log.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel::apps {

struct RoleOptions {
  std::string experiment;
  std::vector<std::string> overrides;
  std::optional<std::string> cluster, task;
  std::string model_dir, data, chief, bind_host;
  int threads = 0;  // 0: a default
  std::string log_level = "info";
  std::string trace;  // not the evaluator
  int ready_fd = -1;
  bool train = false;                       // chief
  bool evaluator = false;                   // chief: one is expected
  std::string notice_file;                  // worker
  std::string data_paths = "shm,tcp,grpc";  // worker, ps
  double chief_timeout_seconds = 60;        // worker: for the experiment
};

// --experiment and --set.
CLI::Option* AddExperimentOptions(CLI::App& app, std::string& experiment, std::vector<std::string>& overrides);
// --cluster and --task.
void AddClusterOptions(CLI::App& app, RoleOptions& options);
void AddDataOption(CLI::App& app, std::string& data);
void AddDataPathOption(CLI::App& app, std::string& data_paths);
void AddThreadsOption(CLI::App& app, int& threads);
CLI::Option* AddTraceOption(CLI::App& app, std::string& trace);
void AddLogLevelOption(CLI::App& app, std::string& level);

// As CLI::Range, which takes "nan" for a number that is in every range.
CLI::Validator Within(double low, double high);

// Parses; no option may be empty. The exit code to end with where there is nothing to run: 0 after --help, 2 for a
// wrong command line.
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv);

// For workers and servers.
TransportOptions ToTransportOptions(const std::string& data_paths);

LogLevel ToLogLevel(const std::string& name);

}  // namespace evenkeel::apps
