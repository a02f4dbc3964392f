// Scenarios of spot markets: a trace says which machines come and go, at the time that they did; and a soak, in which
// few machines come and go while very many commits are made.
//
// Threading: none; pure.
// Errors:    kInvalidArgument names what does not fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/config/availability.h"
#include "evenkeel/sim/simulation.h"

namespace evenkeel::sim {

// How a machine that the trace removes goes.
enum class Removal : std::uint8_t {
  kVanish,  // nothing tells but the lease: its peers' connections stay open
  kKill,    // kill -9: its connections break at once; only the lease ends the membership
  kLeave,   // SIGTERM: its unfinished samples go back at once
};

struct SpotOptions {
  std::uint64_t seed = 1;
  std::string mode = "bsp";  // or asp, ssp
  // Copies of the traces are overlaid until so many nodes are there at once; at most so many are at any time. 0: each
  // trace once, as it is.
  std::int64_t nodes = 0;
  double time_scale = 1;      // the trace runs so many times faster
  double step_seconds = 0.5;  // of a step while the most nodes are there: a tenth fixed, nine for kSamplesANode samples
  std::uint32_t servers = 2;
  Removal removal = Removal::kVanish;
  std::vector<std::string> overrides;  // of the experiment
};
constexpr std::int64_t kSamplesANode = 32;  // the global batch is so many times the most nodes

// One trace of several, each node renamed. Beyond the first of each, copies begin at another moment of the trace, drawn
// from the seed, and go on at its beginning after its end.
std::vector<AvailabilityEvent> OverlayTraces(const std::vector<std::vector<AvailabilityEvent>>& traces,
                                             std::int64_t nodes, std::uint64_t seed);

// A job without other faults that trains until the trace ends, and then is stopped by SIGTERM to its chief. Where the
// overrides say nothing else, workers_min is a quarter of the most nodes, and a checkpoint is written every ten
// minutes.
absl::StatusOr<Scenario> MakeSpotScenario(const std::vector<std::vector<AvailabilityEvent>>& traces,
                                          const SpotOptions& options);

struct SoakOptions {
  std::uint64_t seed = 1;
  std::string mode = "bsp";
  std::int64_t commits = 100'000;
  std::int64_t commits_a_join = 100;  // about; as many machines go
  bool new_names = true;              // each machine has a name of its own; else sixteen come back again and again
};
// Breaks off at the number of commits, and weighs the roles.
Scenario MakeSoakScenario(const SoakOptions& options);

}  // namespace evenkeel::sim
