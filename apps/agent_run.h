// An agent at work: starts its tasks, starts those again that die, ends them all when it is told to.
//
// Threading: Create and Run on main()'s thread; Interrupt from any.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "agent_tasks.h"
#include "evenkeel/launch/supervised_group.h"
#include "evenkeel/transport/transports.h"
#include "status_client.h"

namespace evenkeel::apps {

struct AgentRunOptions {
  AgentTasks tasks;
  SupervisorOptions supervisor;
  Duration grace = std::chrono::seconds(15);  // from SIGTERM to SIGKILL
  Duration monitor_interval = std::chrono::seconds(1);
  bool asks_chief = true;  // the tasks are Evenkeel's roles
};

class AgentRun {
 public:
  static absl::StatusOr<std::unique_ptr<AgentRun>> Create(const AgentRunOptions& options);
  // Returns when no task runs or will: 0 where all ended in good order, else the code of the first that did not (1 for
  // a signal, and for one that had to be killed); 130 after a second interrupt.
  int Run();
  // count 1: all leave, those that do not within the grace are killed; 2: all are killed.
  void Interrupt(int count);

 private:
  explicit AgentRun(const AgentRunOptions& options);
  void OnExit(int process, const ProcessExit& exit);
  void AskChief();
  int Conclude() const;

  const AgentRunOptions options_;
  std::optional<SupervisedGroup> processes_;  // set by Create
  std::unique_ptr<Transport> transport_;
  std::optional<StatusClient> client_;  // where the chief's address is known
  int told_ = 0;
  bool job_ended_ = false;
  std::atomic<int> interrupts_ = 0;
};

}  // namespace evenkeel::apps
