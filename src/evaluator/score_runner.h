// Finds the checkpoints of a model_dir that are due, scores each exactly once, and writes what comes of it.
//
//   due: not scored yet; not commit 0, which holds no training; with eval.newest_only only the newest; at least
//   eval.every_commits after the one scored last, or below it (a roll-back). A final checkpoint is always due.
//
// The state is written before the row of eval.csv, which a restart makes up for.
//
// Threading: one caller at a time; the hook runs in the caller's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evaluator/checkpoint_scorer.h"
#include "evaluator/outputs.h"
#include "evaluator/score_state.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/evaluator/evaluator.h"
#include "evenkeel/protocol/messages.h"

namespace evenkeel {

class ScoreRunner {
 public:
  // Asked between batches.
  using Cancelled = std::function<bool(Version version, bool final)>;

  ScoreRunner(const EvaluatorOptions& options, Storage& storage, const Clock& clock, Cancelled cancelled);

  // Reads what an earlier life left. Errors: kInvalidArgument for an experiment without evaluation data; kDataLoss.
  absl::Status Start();

  // A checkpoint that the chief says is there.
  void Announce(Version version, bool final);
  // Looks at what lies in model_dir. Errors: of the storage; kInvalidArgument for the manifest's experiment.
  absl::Status Look();
  // The next one due, of what Look saw.
  std::optional<Version> NextDue(bool only_final) const;

  enum class Result { kScored, kSkipped, kCancelled };
  // Skipped, with a word: gone before it could be read, or damaged. Errors: kInvalidArgument for another model; of
  // data, model and outputs.
  absl::StatusOr<Result> ScoreOne(Version version);

  // The last score, as a report to the chief. Requires state().last().
  EvalReport Report() const;
  bool AnnouncedFinal(Version version) const { return announced_final_ == version; }

  struct Newest {
    Version version;
    bool final = false;
  };
  // Constant between calls of Look.
  const std::optional<Newest>& newest() const { return newest_; }
  // Folders where something new would appear.
  const std::vector<std::string>& folders() const { return folders_; }
  // Announced, but not to be seen yet (a network file system's cache): look again soon.
  bool awaits_files() const { return !pending_.empty(); }
  // Why a checkpoint that is there cannot be scored; ok where it can.
  absl::Status DamageOf(Version version) const;
  // Any of them; ok where nothing is damaged.
  absl::Status AnyDamage() const { return damaged_.empty() ? absl::OkStatus() : damaged_.rbegin()->second; }

  const ScoreState& state() const { return state_; }
  const std::optional<Experiment>& experiment() const { return experiment_; }

 private:
  absl::Status UseExperiment(Experiment experiment);
  absl::Status FindNewest();
  void SettlePending();
  void MarkDamaged(Version version, const absl::Status& status);
  // Says why a checkpoint could not be read.
  Result Skip(Version version, const absl::Status& status);
  bool EnoughCommits(Version version) const;
  bool IsFinal(Version version) const;
  absl::Status Keep(const Score& score, const Manifest& manifest);

  const EvaluatorOptions& options_;
  Storage& storage_;
  const Clock& clock_;
  const Cancelled cancelled_;
  const std::string state_path_;

  std::optional<Experiment> experiment_;
  ScoreState state_;
  std::optional<ScoreOutputs> outputs_;
  std::optional<CheckpointScorer> scorer_;

  std::vector<Version> on_disk_;  // complete, ascending
  std::vector<std::string> folders_;
  std::optional<Newest> newest_;
  std::map<Version, absl::Status> damaged_;  // of those on disk
  std::set<Version> pending_;
  std::optional<Version> announced_final_;
};

}  // namespace evenkeel
