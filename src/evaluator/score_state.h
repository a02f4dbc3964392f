// What has been scored, the best of it, and early stopping's count: MODEL_DIR/eval_state.json.
//
// Threading: one caller at a time. Bounded: the newest kScoredMax versions and the best are remembered one by one;
// older ones count as scored.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evaluator/metrics.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/ids.h"
#include "evenkeel/core/storage.h"

namespace evenkeel {

struct Score {
  Version version;
  double epochs = 0;
  std::int64_t samples_trained = 0;
  double seconds = 0;  // that scoring took
  bool final = false;
  MetricValues metrics;  // loss first
};

struct BestScore {
  Version version;
  std::string metric;
  double value = 0;
  std::string job_id;
};

class ScoreState {
 public:
  static constexpr std::size_t kScoredMax = 1000;

  // Empty where there is no file. Errors: kDataLoss names the file and what is wrong.
  static absl::StatusOr<ScoreState> Load(const Storage& storage, const std::string& path);
  absl::Status Save(Storage& storage, const std::string& path) const;

  // What to compare by from now on; what was measured by another metric is forgotten.
  void Configure(const EvalConfig& config);
  // Forgets everything of another job. True when there was something to forget.
  bool AdoptJob(const std::string& job_id);
  // The best that is on disk, or none; it wins over a lesser one remembered (a crash came between the two).
  void AdoptBest(const std::optional<BestScore>& on_disk);

  bool Scored(Version version) const;
  // Counts a score. True when it is strictly better than all before.
  bool Record(const Score& score);

  const std::string& job_id() const { return job_id_; }
  const std::optional<Score>& last() const { return last_; }
  const std::optional<BestScore>& best() const { return best_; }
  // Why early stopping asks to end the job, where it does.
  std::optional<std::string> StopReason() const;

 private:
  struct Stopping {
    std::string metric;
    std::optional<double> reference;  // the last improvement by more than min_delta
    Version version;                  // that made it
    std::int64_t without = 0;         // scores since then
  };
  void CountForStopping(const Score& score);

  EvalConfig config_;
  std::string job_id_;
  std::set<Version> scored_;
  std::optional<Version> forgotten_;  // versions up to here count as scored
  std::optional<Score> last_;
  std::optional<BestScore> best_;
  Stopping stopping_;
};

}  // namespace evenkeel
