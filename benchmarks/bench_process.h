// Processes of a benchmark, each with a line to the one that started it. The starter has one thread and knows no
// transport, so that forking is safe.
//
// Lifetime: a Process that goes away takes its process along; a starter that dies takes all of them.
// Errors: kUnavailable: the other end is gone; kDeadlineExceeded names whom it waited for.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"

namespace evenkeel::bench {

// Carries whole messages between two processes. One reader and one writer at a time.
class Line {
 public:
  Line(int fd, std::string peer) : fd_(fd), peer_(std::move(peer)) {}
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  absl::Status Send(std::string_view message, TimePoint deadline);
  absl::StatusOr<std::string> Receive(TimePoint deadline);
  // A Receive in progress, and every later one, ends with kUnavailable.
  void StopReceiving();
  int fd() const { return fd_; }

 private:
  absl::Status Await(short events, TimePoint deadline) const;
  absl::Status ReadAll(char* out, std::size_t bytes, TimePoint deadline);

  const int fd_;
  const std::string peer_;
};

class Process {
 public:
  // `body` runs in the new process; an error ends it with that error's exit code, and is what the starter's Receive
  // gives.
  static absl::StatusOr<std::unique_ptr<Process>> Start(std::string name, std::function<absl::Status(Line&)> body);
  // Ends the line and gives the process a moment to leave, then kills it.
  ~Process();

  const std::string& name() const { return name_; }
  absl::Status Send(std::string_view message, TimePoint deadline) { return line_->Send(message, deadline); }
  absl::StatusOr<std::string> Receive(TimePoint deadline);

 private:
  Process(std::string name, pid_t pid, std::unique_ptr<Line> line);
  const std::string name_;
  const pid_t pid_;
  std::unique_ptr<Line> line_;
};

// What a worker is told and what it answers: the seconds of each round.
struct Burst {
  std::uint32_t operation = 0;  // an index into the benchmark's operations
  std::uint32_t warm = 0;
  std::uint32_t rounds = 0;
};
// Answers bursts with `run` until the line ends.
absl::Status ServeBursts(Line& line, Duration timeout,
                         const std::function<absl::StatusOr<std::vector<double>>(const Burst&)>& run);
// Starts a burst on all and takes the longest time of each round.
absl::StatusOr<std::vector<double>> RunBurst(const std::vector<std::unique_ptr<Process>>& workers, const Burst& burst,
                                             Duration timeout);

}  // namespace evenkeel::bench
