// Processes of this machine, started and watched by one parent that none of them outlives.
//
// Threading: one caller at a time; only Wake is thread-safe. The kernel kills the children when the thread that started
//            them ends, so Start is called from a thread that lives as long as the group, main()'s as a rule.
// Ownership: destruction kills and reaps what still runs.
// Signals:   each child is the leader of a process group of its own: a terminal's Ctrl-C reaches the parent alone. It
//            starts with no signal blocked, and with standard input closed to it. When it ends, what is left of its
//            group is killed.
// Time:      real; deadlines are Clock::Real()'s.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/launch/process_exit.h"

namespace evenkeel {

struct ProcessSpec {
  std::string name;                  // "worker:1"
  std::vector<std::string> command;  // the program's path, then its arguments
  // Over the parent's own environment.
  std::vector<std::pair<std::string, std::string>> environment;
  std::string log_file;  // standard output and error are appended; empty: the parent's
  // This descriptor of the parent is kChildDescriptor in the child; -1: none.
  int pass_descriptor = -1;
};

constexpr int kChildDescriptor = 3;

class ProcessGroup {
 public:
  struct Entry {
    std::string name;
    std::string log_file;
    pid_t pid = 0;
    std::optional<ProcessExit> exit;  // absent while it runs
  };

  // Errors: kInternal when the machine has no descriptor to give.
  static absl::StatusOr<ProcessGroup> Create();
  ProcessGroup(ProcessGroup&& other) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) = delete;
  ~ProcessGroup();

  // Returns the process's place in entries(), from 0. Errors: kNotFound and kPermissionDenied for a program or log file
  // that cannot be opened, kInternal; each names it.
  absl::StatusOr<int> Start(const ProcessSpec& spec);
  // The same in the place of `process`, which has ended. Errors leave that place as it was.
  absl::Status StartAgain(int process, const ProcessSpec& spec);

  const std::vector<Entry>& entries() const { return entries_; }
  bool running(int process) const { return !entries_[static_cast<std::size_t>(process)].exit.has_value(); }
  int running_count() const;

  // Waits until a process ends, Wake is called or the deadline passes. Returns those that ended since the last call.
  std::vector<int> Wait(TimePoint deadline);
  // Ends a Wait in progress, or the next one.
  void Wake();

  // No effect on a process that has ended.
  void Signal(int process, int signal);
  // SIGKILL to it and to whatever it started in its process group; no effect once it has ended.
  void KillTree(int process);
  // SIGTERM to all that run, SIGKILL to those that still do after `grace`; returns when all are reaped. Gives the
  // processes that had to be killed.
  std::vector<int> Stop(Duration grace);
  // SIGKILL to all, and to whatever they started in their process groups. Returns when all are reaped.
  void Kill();

 private:
  explicit ProcessGroup(int wake) : wake_(wake) {}
  struct Started {
    Entry entry;
    int descriptor = -1;
  };
  static absl::StatusOr<Started> Launched(const ProcessSpec& spec);
  bool Reap(std::size_t process);

  std::vector<Entry> entries_;
  std::vector<int> descriptors_;  // a pidfd a process; -1 once reaped
  std::vector<int> unreported_;   // ended, not returned by Wait yet
  int wake_ = -1;                 // eventfd
};

// The last `lines` lines of a text file, of what follows its first `from` bytes, without a final newline; before them
// the last line that tells an error, where another process has written that many since. Empty when there is none. Reads
// at most 16 KiB.
std::string LastLines(const std::string& path, int lines, std::int64_t from = 0);

}  // namespace evenkeel
