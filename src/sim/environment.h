// What the virtual processes of one simulation share.
#pragma once

#include "evenkeel/config/experiment.h"
#include "evenkeel/sim/simulation.h"
#include "sim/interposer.h"
#include "sim/invariants.h"
#include "sim/job_disk.h"
#include "sim/network.h"
#include "sim/scheduler.h"
#include "sim/tally.h"

namespace evenkeel::sim {

struct Environment {
  const Scenario& scenario;
  const Experiment& experiment;
  Scheduler& scheduler;
  Network& network;
  JobDisk& disk;
  Invariants& invariants;
  Interposer& interposer;
  Tally& tally;

  // A random number of its own for each life of a process.
  Rng NewRng(const std::string& machine, std::uint64_t life) const {
    return Rng(MixKey(scenario.seed, HashName(machine), life));
  }
};

// Something between half and one and a half of it.
inline Duration Vary(Rng& rng, Duration usual) {
  return std::chrono::duration_cast<Duration>(usual * (0.5 + rng.NextDouble()));
}

}  // namespace evenkeel::sim
