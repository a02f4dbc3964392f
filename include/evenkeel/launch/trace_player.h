// Plays a trace of machines that come and go on the workers of one machine, faster than it was.
//
// A worker's place is taken by the node that comes and is free when that node goes; a node takes the lowest free place.
// Those of the trace's first moment are there at once; time begins with Begin, when the job has got going.
//
// Threading: none. Time: passed in.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "evenkeel/config/availability.h"
#include "evenkeel/core/clock.h"

namespace evenkeel {

class TracePlayer {
 public:
  struct Change {
    int place = 0;
    bool add = true;  // else the node of this place goes
    std::string node;
    friend bool operator==(const Change&, const Change&) = default;
  };

  // At most `max_workers` are alive, as CapAvailability has it. It runs `time_scale` times as fast as it was.
  // Requires: max_workers >= 1, time_scale > 0.
  TracePlayer(const std::vector<AvailabilityEvent>& events, int max_workers, double time_scale);

  int places() const { return static_cast<int>(nodes_.size()); }
  // Alive right after the trace's first moment.
  int first_alive() const;
  // The trace's first moment is `now`. No effect after the first call.
  void Begin(TimePoint now);
  bool begun() const { return start_.has_value(); }
  // What has come due since the last call, in order. Of what comes and goes within one call nothing is left out.
  std::vector<Change> Due(TimePoint now);
  TimePoint Next() const;  // kNever: the trace is over, or has not begun
  bool over() const { return next_ == events_.size(); }

 private:
  bool FirstMoment(const AvailabilityEvent& event) const { return event.at_ms == events_.front().at_ms; }
  TimePoint At(const AvailabilityEvent& event) const;

  const std::vector<AvailabilityEvent> events_;
  const double time_scale_;
  std::optional<TimePoint> start_;
  std::size_t next_ = 0;
  std::vector<std::string> nodes_;  // by place; empty: free
};

}  // namespace evenkeel
