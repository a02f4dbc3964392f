#include "evenkeel/launch/trace_player.h"

#include <algorithm>

#include "evenkeel/core/status.h"

namespace evenkeel {

TracePlayer::TracePlayer(const std::vector<AvailabilityEvent>& events, int max_workers, double time_scale)
    : events_(CapAvailability(events, static_cast<std::size_t>(max_workers))),
      time_scale_(time_scale),
      nodes_(MostAlive(events_)) {
  EK_CHECK(time_scale > 0);
}

void TracePlayer::Begin(TimePoint now) {
  if (!start_) start_ = now;
}

TimePoint TracePlayer::At(const AvailabilityEvent& event) const {
  if (!start_) return kNever;
  return *start_ + FromSeconds(static_cast<double>(event.at_ms - events_.front().at_ms) / 1000 / time_scale_);
}

int TracePlayer::first_alive() const {
  int alive = 0;
  for (const AvailabilityEvent& event : events_) {
    if (!FirstMoment(event)) break;
    alive += event.add ? 1 : -1;
  }
  return alive;
}

TimePoint TracePlayer::Next() const { return over() ? kNever : At(events_[next_]); }

std::vector<TracePlayer::Change> TracePlayer::Due(TimePoint now) {
  std::vector<Change> due;
  for (; !over() && (FirstMoment(events_[next_]) || Next() <= now); ++next_) {
    const AvailabilityEvent& event = events_[next_];
    const auto place = std::find(nodes_.begin(), nodes_.end(), event.add ? std::string() : event.node);
    EK_CHECK(place != nodes_.end());
    *place = event.add ? event.node : "";
    due.push_back({static_cast<int>(place - nodes_.begin()), event.add, event.node});
  }
  return due;
}

}  // namespace evenkeel
