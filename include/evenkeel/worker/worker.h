// A worker: reads the samples of its tickets, computes gradients on the version asked for, stages them on every server.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/stop.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

struct WorkerOptions {
  Experiment experiment;
  std::string name;           // "worker:1"; "chief:0" for a training chief's
  int index = -1;             // in the cluster file; -1: unlisted
  std::string chief_address;  // "host:port"
  std::string data_folder;    // stands in for EVENKEEL_DATA where that is not set
  int threads = 1;            // of the compute backend
  // It has left in good order, and the job goes on without it; what follows is the end of the process. May be null.
  std::function<void()> on_left;
};

// Trains until the job ends (ok), a stop is asked for (finishes its update or gives it back, leaves, ok), or it fails.
// Blocks.
// Errors: kInvalidArgument, kNotFound, kDataLoss for model and data; kPermissionDenied when the chief refuses for good;
// kDeadlineExceeded when the chief or a server is away for too long; kAborted when the job failed.
absl::Status RunWorker(const WorkerOptions& options, Transport& transport, const Clock& clock, StopSource& stop);

}  // namespace evenkeel
