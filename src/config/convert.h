// From the schema's message, complete and checked, to the plain structs.
#pragma once

#include "evenkeel/config/experiment.h"

namespace evenkeel::config {
class Experiment;
}  // namespace evenkeel::config

namespace evenkeel::config_internal {

// All but canonical_json and spec_hash.
Experiment ToExperiment(const config::Experiment& message);

}  // namespace evenkeel::config_internal
