#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace evenkeel::apps {
namespace {

using Json = nlohmann::json;

constexpr Duration kLineInterval = std::chrono::seconds(5);
constexpr std::size_t kMaxWorkerLines = 16;

const Json& Field(const Json& json, const char* name) {
  static const Json kNone;
  if (!json.is_object()) return kNone;
  const auto found = json.find(name);
  return found == json.end() ? kNone : *found;
}

std::string Text(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  return field.is_string() ? field.get<std::string>() : "";
}

double Number(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  return field.is_number() ? field.get<double>() : 0;
}

std::int64_t Whole(const Json& json, const char* name) { return static_cast<std::int64_t>(Number(json, name)); }

std::string Value(const Json& value) {
  return value.is_number() ? absl::StrFormat("%.5g", value.get<double>()) : "none";
}

// 1:05, 2:01:05
std::string Clockwise(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s >= 3600) return absl::StrFormat("%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
  return absl::StrFormat("%d:%02d", s / 60, s % 60);
}

std::string Metrics(const Json& metrics) {
  std::vector<std::string> words;
  if (metrics.is_object()) {
    for (const auto& [name, value] : metrics.items()) words.push_back(absl::StrCat(name, " ", Value(value)));
  }
  return absl::StrJoin(words, "  ");
}

std::string StepText(const Json& status) {
  std::string text = absl::StrCat("step ", Whole(status, "commit"));
  if (Whole(status, "max_commits") > 0) absl::StrAppend(&text, " of ", Whole(status, "max_commits"));
  absl::StrAppendFormat(&text, "  epoch %.2f", Number(status, "epoch"));
  if (Whole(status, "epochs") > 0) absl::StrAppend(&text, " of ", Whole(status, "epochs"));
  return text;
}

std::string SpeedText(const Json& status) {
  std::string text = absl::StrCat("loss ", Value(Field(status, "loss")));
  absl::StrAppendFormat(&text, "  %.0f examples/s", Number(status, "examples_per_second"));
  if (Field(status, "eta_seconds").is_number()) {
    absl::StrAppend(&text, "  ETA ", Clockwise(Number(status, "eta_seconds")));
  }
  return text;
}

// "noise scale 734 samples, efficiency 0.81, global batch 256"; "" where gradients are not measured.
std::string NoiseText(const Json& status) {
  const Json& noise = Field(status, "gradient_noise");
  if (!noise.is_object() || Whole(noise, "steps") == 0) return "";
  const bool known = Field(noise, "noise_scale").is_number();
  return absl::StrFormat("noise scale %s, efficiency %.2f, global batch %d",
                         known ? absl::StrFormat("%.0f samples", Number(noise, "noise_scale")) : "not known",
                         Number(noise, "statistical_efficiency"), Whole(status, "global_batch_size"));
}

std::string WorkerText(const Json& worker) {
  return absl::StrFormat("%s batch %d %.1f ms", Text(worker, "name"), Whole(worker, "batch"),
                         Number(worker, "step_seconds") * 1e3);
}

// "computes 41.0 ms of 52.3 ms (51.8 expected), waits 4%".
std::string TimesText(const Json& worker) {
  std::string text = absl::StrFormat("computes %.1f ms", Number(worker, "step_seconds") * 1e3);
  const double busy = Number(worker, "busy_seconds"), predicted = Number(worker, "predicted_seconds");
  if (busy > 0) absl::StrAppendFormat(&text, " of %.1f ms", busy * 1e3);
  if (predicted > 0) absl::StrAppendFormat(&text, " (%.1f expected)", predicted * 1e3);
  if (busy > 0) absl::StrAppendFormat(&text, ", waits %.0f%%", Number(worker, "waiting_share") * 100);
  return text;
}

std::string EvalText(const Json& status) {
  const Json& eval = Field(status, "eval");
  if (!eval.is_object()) return "";
  return absl::StrCat("evaluation ", Text(eval, "checkpoint"), "  ", Metrics(Field(eval, "metrics")));
}

Json Parse(std::string_view text) { return Json::parse(text, nullptr, false); }

std::size_t TerminalColumns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 80;
  return size.ws_col;
}

// What and how far, and how fast.
std::vector<std::string> HeadLines(const Json& status) {
  return {absl::StrCat(Text(status, "name"), "  ", Text(status, "phase"), "  ", Text(status, "sync"), "  ",
                       StepText(status)),
          SpeedText(status)};
}

}  // namespace

std::vector<std::string> StatusLines(std::string_view status_json) {
  const Json status = Parse(status_json);
  if (!status.is_object()) return {};
  std::vector<std::string> lines = HeadLines(status);
  const Json& workers = Field(status, "workers");
  for (std::size_t i = 0; workers.is_array() && i < std::min(workers.size(), kMaxWorkerLines); ++i) {
    lines.push_back(absl::StrCat("  ", WorkerText(workers[i]), "  ", Text(workers[i], "state")));
  }
  if (workers.is_array() && workers.size() > kMaxWorkerLines) {
    lines.push_back(absl::StrCat("  and ", workers.size() - kMaxWorkerLines, " more workers"));
  }
  if (std::string eval = EvalText(status); !eval.empty()) lines.push_back(std::move(eval));
  if (std::string whom = Text(status, "waiting_for"); !whom.empty())
    lines.push_back(absl::StrCat("waiting for ", whom));
  return lines;
}

namespace {

std::string LeaseText(const Json& member) {
  const Json& left = Field(member, "lease_seconds_left");
  return left.is_number() ? absl::StrFormat("lease %.1f s", left.get<double>()) : "no lease";
}

std::string DoingText(const Json& member) {
  std::string text = Field(member, "connected") == Json(false) ? "away" : Text(member, "state");
  const Json& since = Field(member, "state_seconds");
  if (since.is_number() && text != "away") absl::StrAppendFormat(&text, " for %.1f s", since.get<double>());
  return text;
}

std::string LedgerText(const Json& status) {
  const Json& ledger = Field(status, "ledger");
  if (!ledger.is_object()) return "";
  return absl::StrFormat("samples: %d of %d epochs whole, %d free, %d in updates, %d granted ahead, %d updates dropped",
                         Whole(ledger, "completed_epochs"), Whole(status, "epochs"), Whole(ledger, "free"),
                         Whole(ledger, "in_updates"), Whole(ledger, "granted_ahead"), Whole(status, "dropped_updates"));
}

}  // namespace

std::string EndStatus(std::string_view status_json) {
  const Json status = Parse(status_json);
  return Text(status, "phase") == "ended" ? Text(status, "status") : "";
}

std::vector<std::string> FullStatusLines(std::string_view status_json) {
  const Json status = Parse(status_json);
  if (!status.is_object()) return {};
  std::vector<std::string> lines = HeadLines(status);
  lines.push_back(absl::StrFormat("term %d  generation %d  membership epoch %d  workers_min %d  workers_max %d",
                                  Whole(status, "term"), Whole(status, "generation"), Whole(status, "membership_epoch"),
                                  Whole(status, "workers_min"), Whole(status, "workers_max")));
  if (std::string ledger = LedgerText(status); !ledger.empty()) lines.push_back(std::move(ledger));
  const std::string checkpoint = Text(status, "last_checkpoint"), writing = Text(status, "checkpoint_in_progress");
  lines.push_back(absl::StrCat("last checkpoint ", checkpoint.empty() ? "none" : checkpoint,
                               writing.empty() ? "" : absl::StrCat(", ", writing, " is written")));
  if (std::string noise = NoiseText(status); !noise.empty()) lines.push_back(std::move(noise));
  if (std::string eval = EvalText(status); !eval.empty()) lines.push_back(std::move(eval));
  for (const Json& server : Field(status, "servers")) {
    lines.push_back(absl::StrFormat("  %-10s incarnation %d  version %d  %.1f MiB  %s  %s", Text(server, "name"),
                                    Whole(server, "incarnation"), Whole(server, "applied"),
                                    Number(server, "owned_bytes") / (1 << 20), LeaseText(server), DoingText(server)));
  }
  for (const Json& worker : Field(status, "workers")) {
    const Json& rank = Field(worker, "rank");
    lines.push_back(absl::StrFormat("  %-10s incarnation %d  %s  batch %d  %s  %s  %s", Text(worker, "name"),
                                    Whole(worker, "incarnation"),
                                    rank.is_number() ? absl::StrCat("rank ", Whole(worker, "rank")) : "no rank",
                                    Whole(worker, "batch"), TimesText(worker), LeaseText(worker), DoingText(worker)));
  }
  for (const Json& name : Field(status, "joining")) {
    if (name.is_string()) lines.push_back(absl::StrCat("  ", name.get<std::string>(), "  waits to be taken in"));
  }
  if (std::string whom = Text(status, "waiting_for"); !whom.empty()) {
    lines.push_back(absl::StrCat("waiting for ", whom));
  }
  return lines;
}

std::string StatusLine(std::string_view status_json) {
  const Json status = Parse(status_json);
  if (!status.is_object()) return "";
  if (std::string whom = Text(status, "waiting_for"); !whom.empty()) {
    return absl::StrCat(Text(status, "phase"), "  ", StepText(status), "  waiting for ", whom);
  }
  std::string line = absl::StrCat(StepText(status), "  ", SpeedText(status));
  const Json& workers = Field(status, "workers");
  for (std::size_t i = 0; workers.is_array() && i < std::min(workers.size(), kMaxWorkerLines); ++i) {
    absl::StrAppend(&line, i == 0 ? "  | " : ", ", WorkerText(workers[i]));
  }
  if (std::string eval = EvalText(status); !eval.empty()) absl::StrAppend(&line, "  | ", eval);
  return line;
}

std::vector<std::string> SummaryLines(std::string_view summary_json, const std::string& model_dir) {
  const Json summary = Parse(summary_json);
  if (!summary.is_object()) return {"summary.json is not readable"};
  std::vector<std::string> lines;
  lines.push_back(absl::StrFormat("%s: %d commits, %d whole epochs in %s, %.0f examples/s", Text(summary, "status"),
                                  Whole(summary, "commits"), Whole(summary, "epochs"),
                                  Clockwise(Number(summary, "wall_seconds")), Number(summary, "examples_per_second")));
  if (std::string reason = Text(summary, "reason"); !reason.empty()) lines.push_back(absl::StrCat("reason: ", reason));
  lines.push_back(absl::StrCat("train loss ", Value(Field(summary, "train_loss"))));
  if (std::string eval = Metrics(Field(summary, "eval")); !eval.empty()) lines.push_back(absl::StrCat("eval: ", eval));
  if (const Json& best = Field(summary, "best"); best.is_object()) {
    lines.push_back(absl::StrCat("best: ", Text(best, "metric"), " ", Value(Field(best, "value")), " at ",
                                 Text(best, "checkpoint")));
  }
  lines.push_back(absl::StrCat("parameters_sha256 ", Text(summary, "parameters_sha256")));
  lines.push_back(absl::StrCat("outputs: ", model_dir, " (summary.json, metrics.csv, checkpoints, tensorboard)"));
  return lines;
}

Display::Display() : terminal_(isatty(STDOUT_FILENO) == 1) {}

void Display::Clear() {
  if (!area_.empty()) std::printf("\x1b[%dA\r\x1b[J", static_cast<int>(area_.size()));
  area_.clear();
}

void Display::Show(const std::string& status_json, TimePoint now) {
  Show(terminal_ ? StatusLines(status_json) : std::vector<std::string>(), terminal_ ? "" : StatusLine(status_json),
       now);
}

void Display::Show(std::vector<std::string> lines, std::string line, TimePoint now) {
  if (terminal_) {
    if (lines.empty()) return;
    Clear();
    const std::size_t columns = TerminalColumns();
    for (std::string& text : lines) {
      if (text.size() >= columns) text.resize(columns - 1);
      std::printf("%s\n", text.c_str());
    }
    area_ = std::move(lines);
  } else {
    if (last_shown_ != TimePoint{} && now < last_shown_ + kLineInterval) return;
    if (line.empty() || line == last_line_) return;
    std::printf("%s\n", line.c_str());
    last_line_ = std::move(line);
    last_shown_ = now;
  }
  std::fflush(stdout);
}

void Display::Say(const std::string& text) {
  Clear();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void Display::Finish() { area_.clear(); }

}  // namespace evenkeel::apps
