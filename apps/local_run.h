// A job on this machine from its first process to its last: starts them, shows how it goes, ends them all.
//
// Threading: Create and Run on main()'s thread; Interrupt from any.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/launch/local_job.h"
#include "evenkeel/launch/process_group.h"
#include "progress.h"

namespace evenkeel::apps {

class LocalRun {
 public:
  // The folders of `options` exist.
  static absl::StatusOr<LocalRun> Create(const LocalJobOptions& options, const Experiment& experiment);

  // Returns launch's exit code: 0 only if the job finished; a process's own code where one failed the job; 130 after an
  // interrupt. No process is left.
  int Run();

  // count 1: the chief is told to stop, with a checkpoint; 2: all are killed.
  void Interrupt(int count);

 private:
  LocalRun(const LocalJobOptions& options, const Experiment& experiment, ProcessGroup group);

  absl::Status StartAll();
  absl::StatusOr<int> StartChief();
  int Watch();
  void OnInterrupt(TimePoint now);
  void OnEnded(int process);
  void Report(int process, const std::string& consequence);
  int FinishAfterChief();
  int Conclude();
  bool AnyTrainer() const;

  const LocalJobOptions options_;
  const Duration grace_;         // from SIGTERM to SIGKILL
  const Duration stop_timeout_;  // for the chief to end after it was told to
  ProcessGroup group_;
  Display display_;
  int port_ = 0;
  int told_ = 0;                         // interrupts acted on
  std::optional<TimePoint> give_up_at_;  // then all are stopped
  int failure_code_ = 0;                 // of the process that failed the job
  std::unique_ptr<std::atomic<int>> interrupts_ = std::make_unique<std::atomic<int>>(0);
};

}  // namespace evenkeel::apps
