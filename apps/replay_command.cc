#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "commands.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/plural.h"
#include "evenkeel/core/status.h"
#include "evenkeel/replay/replay.h"
#include "nlohmann/json.hpp"
#include "options.h"

namespace evenkeel::apps {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  ReplayOptions replay;
  bool json = false;
};

// One line on a terminal, redrawn at most ten times a second.
class ProgressLine {
 public:
  void Show(const ReplayProgress& progress) {
    const TimePoint now = Clock::Real().Now();
    if (!terminal_ || now < due_) return;
    due_ = now + std::chrono::milliseconds(100);
    std::fprintf(stderr, "\r\033[Kreplayed %lld of %lld commits, at %s", static_cast<long long>(progress.done),
                 static_cast<long long>(progress.total), ToString(progress.version).c_str());
    shown_ = true;
  }
  void Clear() {
    if (shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  TimePoint due_{};
  bool shown_ = false;
};

// What agreed with what, in a sentence.
std::string Verdict(const ReplayReport& report) {
  if (!report.agrees()) return absl::StrCat("DIFFERS in ", report.differences_found, " points, the first:");
  if (report.checkpoints.empty()) return "agrees in every loss; there was no checkpoint to compare parameters with";
  if (report.commits_bit_for_bit == report.commits) {
    return absl::StrCat("agrees bit for bit with ", Counted(report.checkpoints.size(), "checkpoint"));
  }
  return absl::StrFormat(
      "agrees with %d checkpoints, bit for bit up to %d of %d commits, then within a tolerance of %g",
      report.checkpoints.size(), report.commits_bit_for_bit, report.commits, report.tolerance);
}

void Print(const ReplayReport& report, double seconds) {
  std::printf(
      "job %s, %s: %s to %s, %lld commits of %lld updates with %lld samples in %.1f s; %lld commits rolled back\n",
      report.job_id.c_str(), report.status.empty() ? "without an end" : report.status.c_str(),
      ToString(report.from).c_str(), ToString(report.to).c_str(), static_cast<long long>(report.commits),
      static_cast<long long>(report.updates), static_cast<long long>(report.samples), seconds,
      static_cast<long long>(report.rolled_back_commits));
  std::printf("samples count once an epoch: %lld epochs complete\n", static_cast<long long>(report.epochs_complete));
  for (const ReplayedFingerprint& one : report.fingerprints) {
    std::printf("computed by %s, %lld updates: %s%s\n", one.recorded.c_str(), static_cast<long long>(one.updates),
                one.reproducible() ? "reproducible here" : "not reproducible here, this is ",
                one.reproducible() ? "" : one.here.c_str());
  }
  for (const CheckpointComparison& checkpoint : report.checkpoints) {
    const std::string arrays = absl::StrJoin(checkpoint.arrays, ", ", [](std::string* out, const auto& array) {
      absl::StrAppend(out, array.name, " ");
      absl::StrAppend(out, array.same_bits
                               ? "same bits"
                               : absl::StrFormat("%.2g apart, at most %.2g", array.relative, array.max_absolute));
    });
    std::printf("checkpoint %s %s: %s\n", CheckpointName(checkpoint.version).c_str(),
                checkpoint.agrees ? "agrees" : "differs", arrays.c_str());
  }
  if (report.commits_after_last_checkpoint > 0) {
    std::printf("the last %lld commits have no checkpoint after them; of these only the losses are compared\n",
                static_cast<long long>(report.commits_after_last_checkpoint));
  }
  for (const std::string& note : report.notes) std::printf("note: %s\n", note.c_str());
  std::printf("replay %s\n", Verdict(report).c_str());
  for (const std::string& difference : report.differences) std::printf("  %s\n", difference.c_str());
}

void PrintJson(const ReplayReport& report, double seconds) {
  Json json{{"agrees", report.agrees()},
            {"job_id", report.job_id},
            {"status", report.status},
            {"from", ToString(report.from)},
            {"to", ToString(report.to)},
            {"commits", report.commits},
            {"commits_bit_for_bit", report.commits_bit_for_bit},
            {"commits_rolled_back", report.rolled_back_commits},
            {"commits_after_last_checkpoint", report.commits_after_last_checkpoint},
            {"updates", report.updates},
            {"samples", report.samples},
            {"epochs_complete", report.epochs_complete},
            {"tolerance", report.tolerance},
            {"seconds", seconds},
            {"fingerprints", Json::array()},
            {"checkpoints", Json::array()},
            {"notes", report.notes},
            {"differences_found", report.differences_found},
            {"differences", report.differences}};
  for (const ReplayedFingerprint& one : report.fingerprints) {
    json["fingerprints"].push_back({{"recorded", one.recorded},
                                    {"here", one.here},
                                    {"reproducible", one.reproducible()},
                                    {"updates", one.updates}});
  }
  for (const CheckpointComparison& checkpoint : report.checkpoints) {
    Json arrays = Json::array();
    for (const ArrayComparison& array : checkpoint.arrays) {
      arrays.push_back({{"name", array.name},
                        {"same_bits", array.same_bits},
                        {"max_absolute", array.max_absolute},
                        {"relative", array.relative}});
    }
    json["checkpoints"].push_back({{"version", CheckpointName(checkpoint.version)},
                                   {"agrees", checkpoint.agrees},
                                   {"bits_expected", checkpoint.bits_expected},
                                   {"arrays", arrays}});
  }
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

absl::StatusOr<bool> Run(Options& options) {
  ProgressLine line;
  const TimePoint start = Clock::Real().Now();
  const absl::StatusOr<ReplayReport> report =
      Replay(options.replay, Storage::Posix(), [&line](const ReplayProgress& progress) { line.Show(progress); });
  line.Clear();
  if (!report.ok()) return report.status();
  const double seconds = ToSeconds(Clock::Real().Now() - start);
  options.json ? PrintJson(*report, seconds) : Print(*report, seconds);
  return report->agrees();
}

int ReplayJob(Options& options) {
  const absl::StatusOr<bool> agrees = Run(options);
  if (agrees.ok()) return static_cast<int>(*agrees ? ExitCode::kOk : ExitCode::kFailed);
  std::fprintf(stderr, "evenkeel replay: %s\n", std::string(agrees.status().message()).c_str());
  return static_cast<int>(ExitCodeFor(agrees.status()));
}

}  // namespace

void AddReplayCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "replay",
      "Recomputes a job from its commit log in one process and compares it with every checkpoint that is still there, "
      "bit for bit where this machine computes as the workers did. Exit codes: 0 it agrees; 1 it differs; 2 wrong "
      "input.");
  ReplayOptions& replay = options->replay;
  command->add_option("--model-dir", replay.model_dir, "The job's folder; it may still be running")
      ->required()
      ->type_name("DIR");
  AddDataOption(*command, replay.data_folder);
  command->add_option("--from", replay.from, "Begins at this checkpoint: a commit's number, or a name as g1-c42")
      ->type_name("VERSION");
  command
      ->add_option("--tolerance", replay.tolerance,
                   "Where bits cannot be had: |recomputed - recorded| / |recorded| of parameters and slots, at most")
      ->capture_default_str()
      ->check(Within(0.0, 1.0));
  command->add_option("--jobs", replay.jobs, "Updates computed at the same time; 0: as many as the cores hold")
      ->capture_default_str()
      ->check(CLI::Range(0, 256));
  command->add_flag("--json", options->json, "The report as a JSON object");
  command->callback([&chosen, options] { chosen = [options] { return ReplayJob(*options); }; });
}

}  // namespace evenkeel::apps
