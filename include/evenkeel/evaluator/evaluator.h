// Scores checkpoints, keeps the best export, asks for early stopping. With a chief's address it works beside a job;
// alone it follows a model_dir, live or finished.
//
//   MODEL_DIR/tensorboard/eval/...   event files, step = commit
//   MODEL_DIR/eval.csv               a row a scored checkpoint
//   MODEL_DIR/best/model.safetensors, best.json   the best so far; the comparison survives a restart
//   MODEL_DIR/eval_state.json        what has been scored, so that each checkpoint is scored exactly once
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/stop.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

struct EvaluatorOptions {
  // Absent: read from the newest checkpoint's manifest.
  std::optional<Experiment> experiment;
  std::string model_dir;
  std::string name = "evaluator:0";
  std::string chief_address;  // empty: alone on model_dir
  std::string data_folder;
  int threads = 1;
};

// Returns once the final checkpoint is scored, the job has ended, nothing new came for eval.idle_timeout (alone), or a
// stop is asked for: ok in each case. A damaged checkpoint, or one removed before it could be read, is skipped with a
// word. Beside a job that ended without the final score, the final checkpoint is scored first. Blocks. Errors:
// kInvalidArgument, kNotFound, kDataLoss for model, data and checkpoints (an experiment without evaluation data;
//         a checkpoint of another model; alone, a damaged final checkpoint or none that is whole); kPermissionDenied
//         when the chief refuses; kDeadlineExceeded when it does not answer for membership.chief_timeout, or, alone,
//         when no checkpoint at all appears for eval.idle_timeout.
absl::Status RunEvaluator(const EvaluatorOptions& options, Transport& transport, Storage& storage, const Clock& clock,
                          StopSource& stop);

}  // namespace evenkeel
