// Experiments to vary.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "evenkeel/config/experiment.h"

namespace evenkeel {

// The least that an experiment must say.
inline constexpr char kSmall[] = R"({
  "model": {"layers": [{"flatten": {}}, {"dense": {"units": 10}}]},
  "input": {"train": {"idx": {"images": "i", "labels": "l"}}, "classes": 10},
  "train": {"epochs": 1}
})";

// kSmall with overrides, which must be accepted.
inline Experiment Accepted(const std::vector<std::string>& overrides = {}, const char* json = kSmall) {
  const auto experiment = ParseExperiment(json, "small.json", overrides);
  INFO(experiment.status().ToString());
  REQUIRE(experiment.ok());
  return *experiment;
}

// The message that kSmall with overrides is refused with.
inline std::string Refused(const std::vector<std::string>& overrides, const char* json = kSmall) {
  const auto experiment = ParseExperiment(json, "small.json", overrides);
  if (experiment.ok()) return "accepted";
  CHECK(experiment.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(experiment.status().message());
}

}  // namespace evenkeel
