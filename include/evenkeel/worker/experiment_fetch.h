// The experiment of a job of which only the chief's address is known.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/stop.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

// Tells the chief that worker `name` comes. Asks until the chief answers. ${VAR} in it is left for this host to fill
// in. Blocks. Errors: kDeadlineExceeded names the address; kCancelled once `stop` is requested; kFailedPrecondition
// when the chief's experiment means something else to this program than to the chief.
absl::StatusOr<Experiment> FetchExperiment(const std::string& chief_address, const std::string& name,
                                           Transport& transport, const Clock& clock, StopSource& stop,
                                           Duration timeout);

}  // namespace evenkeel
