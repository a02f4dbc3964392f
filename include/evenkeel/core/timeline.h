// What this process does when, as a timeline that Perfetto and chrome://tracing open: Chrome's trace event format, a
// JSON array with an event a line. Several processes may write into one file; their events are on one clock, the
// wall's, in microseconds.
//
// Off unless started: then each call costs one load. On: under a microsecond, and a write of 64 KiB now and then.
// Threading: thread-safe. Limits: 256 MiB a process; what comes after is left out, with a warning.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "evenkeel/core/clock.h"

namespace evenkeel {

// Begins to append to `path`, which is made where it is not there. `process` names this process's part: "worker:1".
// Call once. Errors: kUnavailable names the file and why.
absl::Status StartTimeline(const std::string& path, std::string_view process);
// Writes what is left. The array's end is left to whoever began the file; both viewers do without it.
void EndTimeline();
bool TimelineOn();

// Something that took from `begin` until `end`, by Clock::Real(). Events of one track lie within one another or apart.
void TimelineSpan(std::string_view track, std::string_view name, TimePoint begin, TimePoint end);
// Something that happened at once.
void TimelineMark(std::string_view track, std::string_view name, TimePoint at);

// From here to the end of the block.
class TimelineBlock {
 public:
  TimelineBlock(std::string_view track, std::string name)
      : on_(TimelineOn()),
        track_(track),
        name_(on_ ? std::move(name) : ""),
        begin_(on_ ? Clock::Real().Now() : TimePoint{}) {}
  ~TimelineBlock() {
    if (on_) TimelineSpan(track_, name_, begin_, Clock::Real().Now());
  }
  TimelineBlock(const TimelineBlock&) = delete;
  TimelineBlock& operator=(const TimelineBlock&) = delete;

 private:
  const bool on_;
  const std::string_view track_;
  const std::string name_;
  const TimePoint begin_;
};

// A file of its own: begins it anew, and ends the array once all others have written. Errors: as above.
absl::Status BeginTimelineFile(const std::string& path);
absl::Status EndTimelineFile(const std::string& path);

}  // namespace evenkeel
