// Traces of spot markets: which machines came and went, and when. They drive the simulator and the local launcher.
//
// Formats, told apart by their first line:
//   node events  "40800000,remove,node176"              ms, add or remove, node          (Bamboo)
//   event lists  [0, "add", {"nodes": ["node-0", ...]}]  a JSON list a line; actions other than add and remove say
//                                                       nothing about machines          (Parcae)
//   live counts  "60000,17"                             ms, how many are there           (Parcae)
//   dated counts "2021-12-11, 11:11:30, 55"             date, time of day, how many      (Bamboo's gcloud)
// Counts name no machines: they are numbered as they come ("node0", ...), and the one that was there longest goes
// first. Times never go back, but for dated counts, which are sorted, and whose first sample is moment 0.
//
// Threading: none; pure but for LoadAvailability's file.
// Limits:    64 MiB a file, 64 characters a node's name, 100,000 nodes alive, ten years.
// Errors:    kInvalidArgument, "p3.csv: line 3, field 2 (action): 'stop' is neither add nor remove"; kNotFound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace evenkeel {

struct AvailabilityEvent {
  std::int64_t at_ms = 0;  // from the trace's beginning
  bool add = true;         // else the node is removed
  std::string node;
  friend bool operator==(const AvailabilityEvent&, const AvailabilityEvent&) = default;
};

enum class AvailabilityFormat { kNodeEvents, kEventLists, kLiveCounts, kDatedCounts };

absl::StatusOr<AvailabilityFormat> DetectAvailabilityFormat(std::string_view text, std::string_view origin);

// In order of time, at least one. A node is added only while it is away and removed only while it is there.
absl::StatusOr<std::vector<AvailabilityEvent>> ParseAvailability(std::string_view text, std::string_view origin,
                                                                 AvailabilityFormat format);
absl::StatusOr<std::vector<AvailabilityEvent>> ParseAvailability(std::string_view text, std::string_view origin);
absl::StatusOr<std::vector<AvailabilityEvent>> LoadAvailability(const std::string& path);

// The same trace with at most `max_live` nodes alive: the others wait, and the one that has waited longest comes when
// one that is alive goes. So min(nodes of the trace, max_live) are alive at every moment.
// Requires: max_live >= 1, and events as ParseAvailability gives them.
std::vector<AvailabilityEvent> CapAvailability(const std::vector<AvailabilityEvent>& events, std::size_t max_live);

// The most nodes alive at once.
std::size_t MostAlive(const std::vector<AvailabilityEvent>& events);

}  // namespace evenkeel
