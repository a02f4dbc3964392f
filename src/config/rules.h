// What the schema's options can't say: defaults that follow from other fields, and rules that join several.
//
// Threading: none. Errors: kInvalidArgument, "PATH: the offending value and what is allowed".
#pragma once

#include <string>

#include "absl/status/status.h"

namespace evenkeel::config {
class Experiment;
class Layer;
class Model;
}  // namespace evenkeel::config

namespace evenkeel::config_internal {

// "dense"; a custom layer's own type.
std::string LayerType(const config::Layer& layer);

// Moves nodes to layers; fills in names, inputs, padding and strides; checks the graph.
absl::Status CompleteModel(config::Model& model);

// The other sections, the model being complete.
absl::Status CompleteInput(config::Experiment& experiment);
absl::Status CompleteTrain(config::Experiment& experiment);
absl::Status CompleteEval(config::Experiment& experiment);
absl::Status CompleteRest(config::Experiment& experiment);  // checkpoint, membership, batching

}  // namespace evenkeel::config_internal
