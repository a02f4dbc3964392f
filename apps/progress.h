// How a job stands, for people: from the chief's status (chief_status JSON) and from summary.json.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evenkeel/core/clock.h"

namespace evenkeel::apps {

// Several lines: the job, its speed, each worker, the last evaluation, whom it waits for. Empty for text that is no
// status.
std::vector<std::string> StatusLines(std::string_view status_json);
// All that the chief tells: besides these lines term, generation and membership epoch, where the samples are, the last
// checkpoint, each server, and each member's rank, lease and state.
std::vector<std::string> FullStatusLines(std::string_view status_json);
// How the job ended ("finished"); empty while it goes on.
std::string EndStatus(std::string_view status_json);
// The same in one line.
std::string StatusLine(std::string_view status_json);
// Which members have come, left or been lost from one status to the next, for lines that stay.
class MembershipNews {
 public:
  // Nothing for the first status, nor for text that is no status.
  std::vector<std::string> Take(std::string_view status_json);

 private:
  std::optional<std::int64_t> term_;
  std::int64_t last_event_ = 0;
  std::optional<std::map<std::string, bool>> servers_;  // whether they were leaving
};

// What a job leaves: status, speed, losses and metrics, best, fingerprint of the parameters, where outputs lie.
// stopped_for: why its chief was told to stop, which knows only the signal; "": nobody told it.
std::vector<std::string> SummaryLines(std::string_view summary_json, const std::string& model_dir,
                                      const std::string& stopped_for = "");

// Shows a running job on standard output: one area redrawn in place on a terminal, else a line at a change, at most one
// in five seconds.
class Display {
 public:
  Display();
  void Show(const std::string& status_json, TimePoint now);
  // The same with lines that are made already, for a terminal and for elsewhere.
  void Show(std::vector<std::string> lines, std::string line, TimePoint now);
  bool terminal() const { return terminal_; }
  // A line that stays.
  void Say(const std::string& text);
  // Leaves the area as it is.
  void Finish();

 private:
  void Clear();
  const bool terminal_;
  std::vector<std::string> area_;
  std::string last_line_;
  TimePoint last_shown_{};
};

}  // namespace evenkeel::apps
