// Where numbers go: TensorBoard event files, CSV, summary.json.
//
// Threading: a writer is for one thread at a time. Errors name the path.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/storage.h"

namespace evenkeel {

struct Scalar {
  std::string tag;  // "loss", "worker/1/batch_size"
  double value = 0;
};

// A TensorBoard event file (TFRecord framing of tensorflow.Event), FOLDER/events.out.tfevents.SECONDS.HOST.
class EventFileWriter {
 public:
  static absl::StatusOr<std::unique_ptr<EventFileWriter>> Open(Storage& storage, const std::string& folder,
                                                               const Clock& clock, std::string_view suffix);
  ~EventFileWriter();
  absl::Status Write(std::int64_t step, std::span<const Scalar> scalars);
  absl::Status Flush();

 private:
  struct State;
  explicit EventFileWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Rows under a fixed header; quotes where needed. Appends to an existing file with the same header, so that a resumed
// job continues it; rows of a first column greater than `resume_after` are cut (a roll-back's).
class CsvWriter {
 public:
  static absl::StatusOr<std::unique_ptr<CsvWriter>> Open(Storage& storage, const std::string& path,
                                                         const std::vector<std::string>& header,
                                                         std::optional<std::int64_t> resume_after);
  ~CsvWriter();
  // The last row that was there already, without its line end; "": none was.
  const std::string& last_row() const;
  absl::Status Write(const std::vector<std::string>& row);
  absl::Status Flush();

 private:
  struct State;
  explicit CsvWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct WorkerSummary {
  std::string id;
  std::int64_t commits = 0, samples = 0;
  double mean_batch = 0, mean_step_seconds = 0;
};
struct Summary {
  std::string status;  // finished, stopped, failed
  std::string reason;
  std::int64_t commits = 0;
  std::int64_t epochs = 0;  // completed
  std::int64_t samples_trained = 0;
  std::vector<std::int64_t> samples_per_epoch;
  std::int64_t dropped_updates = 0;
  std::int64_t samples_rolled_back = 0;
  double wall_seconds = 0;  // from each chief's first ticket to its last commit, summed
  double examples_per_second = 0;
  std::optional<double> train_loss;
  std::vector<std::pair<std::string, double>> eval;  // of the final checkpoint
  struct Best {
    std::string checkpoint, metric;
    double value = 0;
  };
  std::optional<Best> best;
  std::vector<WorkerSummary> workers;
  std::string parameters_sha256;
};
std::string ToJson(const Summary& summary);
absl::Status WriteSummary(Storage& storage, const std::string& model_dir, const Summary& summary);

}  // namespace evenkeel
