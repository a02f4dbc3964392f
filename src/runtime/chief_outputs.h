// A job's numbers in model_dir: TensorBoard, CSV, summary.
//
// Threading: one caller at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "evenkeel/chief/chief.h"
#include "evenkeel/metrics/sinks.h"

namespace evenkeel {

class ChiefOutputs {
 public:
  // Goes on after `resumed_commit` where a job is resumed: of the commits that it adopts, those that have no row yet
  // get one.
  static absl::StatusOr<std::unique_ptr<ChiefOutputs>> Open(Storage& storage, const std::string& model_dir,
                                                            const Clock& clock,
                                                            std::optional<std::int64_t> resumed_commit);
  absl::Status Write(const CommitRow& row);
  absl::Status Flush();

 private:
  ChiefOutputs() = default;
  std::optional<Version> last_;  // that had a row before this chief
  std::unique_ptr<EventFileWriter> events_;
  std::unique_ptr<CsvWriter> csv_;
};

}  // namespace evenkeel
