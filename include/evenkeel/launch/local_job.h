// The processes of a job that runs wholly on this machine, as commands and environments: chief first, on a port of its
// choice, then all others with that port in their TF_CONFIG.
//
// Threading: none; pure functions.
#pragma once

#include <string>
#include <vector>

#include "evenkeel/launch/process_group.h"

namespace evenkeel {

struct LocalJobOptions {
  std::string program_folder;  // holds evenkeel-chief and the others
  std::string experiment;      // path
  std::vector<std::string> overrides;
  bool chief_trains = false;
  int servers = 1;
  int workers = 1;
  int awaited_workers = -1;  // that the chief waits for at the start; -1: all
  bool evaluator = false;
  std::string model_dir;
  std::string data_folder;  // empty: not given
  int threads = 0;          // 0: each process's own default
  std::string trace;        // a timeline that all but the evaluator append to; empty: none
  std::string log_folder;   // NAME.log a process, ':' as '-'
  std::string log_level = "info";
};

// Writes its port to kChildDescriptor, which the caller gives it.
ProcessSpec LocalChief(const LocalJobOptions& options);
// The same chief on the port that it had; it reports none.
ProcessSpec LocalChiefAgain(const LocalJobOptions& options, int port);
// Servers, workers, evaluator, in this order.
std::vector<ProcessSpec> LocalMembers(const LocalJobOptions& options, int chief_port);
// A server, also one beyond options.servers.
ProcessSpec LocalServer(const LocalJobOptions& options, int chief_port, int index);

}  // namespace evenkeel
