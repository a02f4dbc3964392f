// What a model_dir holds for a replay: the surviving line of commits, the checkpoints on it, the experiments they ran.
//
// Threading: none.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/replay/replay.h"
#include "replay/history.h"

namespace evenkeel::replay {

struct Sources {
  History history;
  std::map<std::string, Experiment> experiments;   // by spec hash
  std::map<std::string, absl::Status> unreadable;  // of terms that may have committed nothing
  std::map<Version, Manifest> checkpoints;         // on the line, each checked to the last byte
  std::vector<std::string> notes;                  // what is left out
  // Of a job that has not ended, which goes on removing older checkpoints: a copy of the newest, in memory.
  std::unique_ptr<Storage> kept;
};

// Errors: as Replay's.
absl::StatusOr<Sources> ReadSources(const ReplayOptions& options, const Storage& storage);

// Of the copy, where there is one. Errors: kNotFound when it was removed meanwhile; kDataLoss.
absl::StatusOr<CheckpointReader> OpenCheckpoint(const Sources& sources, const Storage& storage,
                                                const std::string& model_dir, Version version);

// Where to begin: at the start of the log, or at the checkpoint that options.from names.
absl::StatusOr<Version> FindStart(const ReplayOptions& options, const Sources& sources);

}  // namespace evenkeel::replay
