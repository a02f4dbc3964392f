// Runs a chief for real: one mutex around its decisions, a timer, the streams of its members, the commit log,
// checkpoints' manifests and the job's outputs in model_dir.
//
//   MODEL_DIR/chief.wal.TERM           the commit log, one file a term
//   MODEL_DIR/chief.lock               held while a chief lives
//   MODEL_DIR/checkpoints/...          see checkpoint.h
//   MODEL_DIR/metrics.csv              a row a commit
//   MODEL_DIR/tensorboard/train/...    event files
//   MODEL_DIR/summary.json             when the job ends
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/stop.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

struct ChiefRunnerOptions {
  Experiment experiment;
  std::string listen_address;  // "host:port"; port 0: any free one
  std::string model_dir;
  std::uint32_t servers = 1;
  std::vector<std::string> listed_workers;  // see ChiefOptions
  std::vector<std::int64_t> batch_sizes;
  bool expects_evaluator = false;
  // Called once, when the chief accepts streams, with the real port.
  std::function<void(int port)> on_listening;
};

// Returns when the job has ended: ok when it finished, was stopped, or had finished before. Blocks; StopSource ends it
// early with a checkpoint. Errors: kAlreadyExists when another chief holds model_dir; kInvalidArgument and kDataLoss
// for a checkpoint or log that is damaged or of another experiment; kDeadlineExceeded when members did not come;
// kAborted when a server was lost.
absl::Status RunChief(const ChiefRunnerOptions& options, Transport& transport, Storage& storage, const Clock& clock,
                      StopSource& stop);

}  // namespace evenkeel
