#include "runtime/chief_outputs.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

absl::StatusOr<std::unique_ptr<ChiefOutputs>> ChiefOutputs::Open(Storage& storage, const std::string& model_dir,
                                                                 const Clock& clock,
                                                                 std::optional<std::int64_t> resumed_commit) {
  std::unique_ptr<ChiefOutputs> outputs(new ChiefOutputs());
  const std::string folder = JoinPath(JoinPath(model_dir, "tensorboard"), "train");
  EK_RETURN_IF_ERROR(storage.MakeFolder(folder));
  EK_ASSIGN_OR_RETURN(outputs->events_, EventFileWriter::Open(storage, folder, clock, ""));
  EK_ASSIGN_OR_RETURN(outputs->csv_, CsvWriter::Open(storage, JoinPath(model_dir, "metrics.csv"),
                                                     {"commit", "generation", "epoch", "samples", "samples_trained",
                                                      "loss", "learning_rate", "examples_per_second", "seconds",
                                                      "dropped_updates", "global_batch_size", "gradient_norm",
                                                      "noise_scale", "statistical_efficiency", "workers"},
                                                     resumed_commit));
  const std::vector<absl::string_view> fields = absl::StrSplit(outputs->csv_->last_row(), absl::MaxSplits(',', 2));
  std::uint64_t commit = 0, generation = 0;
  if (fields.size() >= 2 && absl::SimpleAtoi(fields[0], &commit) && absl::SimpleAtoi(fields[1], &generation)) {
    outputs->last_ = Version{Generation(generation), CommitNumber(commit)};
  }
  return outputs;
}

absl::Status ChiefOutputs::Write(const CommitRow& row) {
  if (row.adopted && last_ && row.version <= *last_) return absl::OkStatus();
  std::vector<Scalar> scalars = {{"loss", row.loss},
                                 {"learning_rate", row.learning_rate},
                                 {"epoch", row.epoch},
                                 {"samples", static_cast<double>(row.samples)},
                                 {"dropped_updates", static_cast<double>(row.dropped_updates)},
                                 {"global_batch_size", static_cast<double>(row.global_batch_size)}};
  for (const auto& [tag, value] :
       {std::pair("examples_per_second", row.examples_per_second), std::pair("gradient_norm", row.gradient_norm),
        std::pair("noise_scale", row.noise_scale), std::pair("statistical_efficiency", row.statistical_efficiency)}) {
    if (value) scalars.push_back({tag, *value});
  }
  std::string workers;
  for (const CommitRow::Worker& worker : row.workers) {
    const std::string name = worker.name.empty() ? absl::StrCat("rank", worker.rank.value()) : worker.name;
    scalars.push_back({absl::StrCat("batch_size/", name), static_cast<double>(worker.batch)});
    if (row.adopted) {
      absl::StrAppendFormat(&workers, "%s%s batch=%d staleness=%d", workers.empty() ? "" : "; ", name, worker.batch,
                            worker.staleness);
      continue;
    }
    scalars.push_back({absl::StrCat("step_seconds/", name), worker.step_seconds});
    scalars.push_back({absl::StrCat("busy_seconds/", name), worker.busy_seconds});
    scalars.push_back({absl::StrCat("predicted_seconds/", name), worker.predicted_seconds});
    scalars.push_back({absl::StrCat("waiting_share/", name), worker.waiting_share});
    scalars.push_back({absl::StrCat("staleness/", name), static_cast<double>(worker.staleness)});
    if (worker.gradient_norm > 0) scalars.push_back({absl::StrCat("gradient_norm/", name), worker.gradient_norm});
    absl::StrAppendFormat(&workers,
                          "%s%s batch=%d step_seconds=%.6f busy_seconds=%.6f predicted_seconds=%.6f "
                          "waiting_share=%.4f staleness=%d gradient_norm=%.6g",
                          workers.empty() ? "" : "; ", name, worker.batch, worker.step_seconds, worker.busy_seconds,
                          worker.predicted_seconds, worker.waiting_share, worker.staleness, worker.gradient_norm);
  }
  EK_RETURN_IF_ERROR(events_->Write(static_cast<std::int64_t>(row.version.commit.value()), scalars));
  const auto known = [](const std::optional<double>& value) { return value ? absl::StrFormat("%.6g", *value) : ""; };
  const std::string seconds = row.seconds ? absl::StrFormat("%.6f", *row.seconds) : "";
  return csv_->Write({absl::StrCat(row.version.commit.value()), absl::StrCat(row.version.generation.value()),
                      absl::StrFormat("%.6f", row.epoch), absl::StrCat(row.samples), absl::StrCat(row.samples_trained),
                      absl::StrFormat("%.9g", row.loss), absl::StrFormat("%.9g", row.learning_rate),
                      known(row.examples_per_second), seconds, absl::StrCat(row.dropped_updates),
                      absl::StrCat(row.global_batch_size), known(row.gradient_norm), known(row.noise_scale),
                      known(row.statistical_efficiency), workers});
}

absl::Status ChiefOutputs::Flush() {
  EK_RETURN_IF_ERROR(events_->Flush());
  return csv_->Flush();
}

}  // namespace evenkeel
