// What `evenkeel simulate` does beside seeds and faults: traces of spot markets, and the soak.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/sim/spot.h"

namespace evenkeel::apps {

struct SpotCommand {
  std::vector<std::string> files;
  std::string removal = "vanish";
  sim::SpotOptions options;
};

// The figures on standard output. False: an invariant is broken.
absl::StatusOr<bool> SimulateSpot(const SpotCommand& command);

// A quarter of the commits, then all of them: the roles must not have grown. False: they have, or an invariant is
// broken.
absl::StatusOr<bool> SimulateSoak(const sim::SoakOptions& options);

}  // namespace evenkeel::apps
