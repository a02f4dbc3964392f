#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "evenkeel/core/plural.h"
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
  if (Field(status, "examples_per_second").is_number()) {
    absl::StrAppendFormat(&text, "  %.0f examples/s", Number(status, "examples_per_second"));
  }
  if (Field(status, "eta_seconds").is_number()) {
    absl::StrAppend(&text, "  ETA ", Clockwise(Number(status, "eta_seconds")));
  }
  return text;
}

// "ends in 9.5 s unless ...": what a wait leads to. Empty where nothing is waited for.
std::string WaitingText(const Json& status) {
  const std::string whom = Text(status, "waiting_for");
  if (whom.empty()) return "";
  std::string text = absl::StrCat("waiting for ", whom);
  if (Field(status, "waiting_seconds_left").is_number()) {
    absl::StrAppendFormat(&text, "; %s in %.1f s unless %s", Text(status, "waiting_then"),
                          Number(status, "waiting_seconds_left"), Text(status, "waiting_unless"));
  }
  return text;
}

bool Flag(const Json& json, const char* name) { return Field(json, name) == Json(true); }

// Its place among those that train.
std::string PlaceText(const Json& worker) {
  const Json& rank = Field(worker, "rank");
  std::string text = rank.is_number()              ? absl::StrCat("rank ", Whole(worker, "rank"))
                     : Flag(worker, "standing_by") ? "standing by"
                                                   : "joining";
  if (Flag(worker, "leaving")) absl::StrAppend(&text, ", leaving");
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
  if (!Field(worker, "rank").is_number()) return absl::StrCat(Text(worker, "name"), " ", PlaceText(worker));
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

// A job that stands still does not run.
std::string PhaseText(const Json& status) {
  const std::string phase = Text(status, "phase");
  return phase == "running" && !Text(status, "waiting_for").empty() ? "waiting" : phase;
}

// What and how far, and how fast.
std::vector<std::string> HeadLines(const Json& status) {
  return {
      absl::StrCat(Text(status, "name"), "  ", PhaseText(status), "  ", Text(status, "sync"), "  ", StepText(status)),
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
    lines.push_back(absl::StrCat("  and ", Counted(workers.size() - kMaxWorkerLines, "more worker")));
  }
  if (std::string eval = EvalText(status); !eval.empty()) lines.push_back(std::move(eval));
  if (std::string waiting = WaitingText(status); !waiting.empty()) lines.push_back(std::move(waiting));
  return lines;
}

namespace {

std::string LeaseText(const Json& member) {
  const Json& left = Field(member, "lease_seconds_left");
  return left.is_number() ? absl::StrFormat("lease %.1f s", left.get<double>()) : "no lease";
}

// "shm", or one for each server where they differ.
std::string DataPathsText(const Json& worker) {
  std::vector<std::string> ways;
  for (const Json& way : Field(worker, "data_paths")) ways.push_back(way.is_string() ? way.get<std::string>() : "?");
  if (std::set<std::string>(ways.begin(), ways.end()).size() == 1) ways.resize(1);
  return ways.empty() ? "" : absl::StrCat("by ", absl::StrJoin(ways, ","), "  ");
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
  // Samples of the epoch after the next one's may be taken before that is through.
  const std::int64_t free = Whole(ledger, "free"), now = Whole(ledger, "free_in_next_epoch");
  std::string text = absl::StrFormat("samples: %d of %d epochs whole, %d free", Whole(ledger, "completed_epochs"),
                                     Whole(status, "epochs"), now);
  if (Field(ledger, "next_epoch").is_number()) absl::StrAppend(&text, " in epoch ", Whole(ledger, "next_epoch") + 1);
  if (free > now) absl::StrAppend(&text, " and ", free - now, " in the one after it");
  return absl::StrCat(text, ", ", Whole(ledger, "in_updates"), " in updates, ", Whole(ledger, "granted_ahead"),
                      " granted ahead, ",
                      Counted(static_cast<std::uint64_t>(Whole(status, "dropped_updates")), "update"), " dropped");
}

// Of the table's first column: the longest name of a member.
int NameWidth(const Json& status) {
  std::size_t width = 10;
  for (const char* list : {"servers", "spare_servers", "workers", "joining", "coming"}) {
    for (const Json& member : Field(status, list)) {
      width = std::max(width, member.is_string() ? member.get<std::string>().size() : Text(member, "name").size());
    }
  }
  return static_cast<int>(std::min<std::size_t>(width, 200));
}

std::string ServerText(const Json& server, std::string_view list, int width) {
  std::string text =
      absl::StrFormat("  %-*s incarnation %d  ", width, Text(server, "name"), Whole(server, "incarnation"));
  if (list == "servers") {
    absl::StrAppendFormat(&text, "version %d  %.1f MiB  ", Whole(server, "applied"),
                          Number(server, "owned_bytes") / (1 << 20));
  } else {
    absl::StrAppend(&text, Flag(server, "leaving") ? "" : "standing by  ");
  }
  absl::StrAppend(&text, Flag(server, "leaving") ? "leaving  " : "", LeaseText(server), "  ", DoingText(server));
  return text;
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
  const int width = NameWidth(status);
  for (const char* list : {"servers", "spare_servers"}) {
    for (const Json& server : Field(status, list)) lines.push_back(ServerText(server, list, width));
  }
  if (Field(status, "servers_wanted").is_number()) {
    lines.push_back(
        absl::StrCat("  ", Counted(static_cast<std::uint64_t>(Whole(status, "servers_wanted")), "server"), " ordered"));
  }
  for (const Json& worker : Field(status, "workers")) {
    lines.push_back(absl::StrFormat("  %-*s incarnation %d  %s  batch %d  %s  %s%s  %s", width, Text(worker, "name"),
                                    Whole(worker, "incarnation"), PlaceText(worker), Whole(worker, "batch"),
                                    TimesText(worker), DataPathsText(worker), LeaseText(worker), DoingText(worker)));
  }
  for (const Json& name : Field(status, "joining")) {
    if (name.is_string()) {
      lines.push_back(absl::StrFormat("  %-*s joining, waits to be taken in", width, name.get<std::string>()));
    }
  }
  for (const Json& worker : Field(status, "coming")) {
    lines.push_back(absl::StrFormat("  %-*s joining, opens its data for %.1f s", width, Text(worker, "name"),
                                    Number(worker, "seconds")));
  }
  if (std::string waiting = WaitingText(status); !waiting.empty()) lines.push_back(std::move(waiting));
  return lines;
}

std::string StatusLine(std::string_view status_json) {
  const Json status = Parse(status_json);
  if (!status.is_object()) return "";
  if (const std::string waiting = WaitingText(status); !waiting.empty()) {
    return absl::StrCat(PhaseText(status), "  ", StepText(status), "  ", waiting);
  }
  std::string line = absl::StrCat(StepText(status), "  ", SpeedText(status));
  const Json& workers = Field(status, "workers");
  for (std::size_t i = 0; workers.is_array() && i < std::min(workers.size(), kMaxWorkerLines); ++i) {
    absl::StrAppend(&line, i == 0 ? "  | " : ", ", WorkerText(workers[i]));
  }
  if (std::string eval = EvalText(status); !eval.empty()) absl::StrAppend(&line, "  | ", eval);
  return line;
}

std::vector<std::string> MembershipNews::Take(std::string_view status_json) {
  const Json status = Parse(status_json);
  if (!status.is_object()) return {};
  std::vector<std::string> lines;
  const std::int64_t term = Whole(status, "term");
  const bool first = !term_;
  if (term_ != term) last_event_ = 0;  // each chief counts anew
  term_ = term;
  for (const Json& event : Field(status, "member_events")) {
    const std::int64_t number = Whole(event, "number");
    if (number <= last_event_) continue;
    last_event_ = number;
    if (!first) lines.push_back(Text(event, "text"));
  }
  // While a job comes up or goes back nobody knows who will be there.
  if (Text(status, "phase") != "running") return lines;
  std::map<std::string, bool> servers;
  for (const char* list : {"servers", "spare_servers"}) {
    for (const Json& server : Field(status, list)) {
      if (Whole(server, "incarnation") > 0) servers[Text(server, "name")] = Flag(server, "leaving");
    }
  }
  if (servers_) {
    for (const auto& [name, leaving] : servers) {
      if (!servers_->contains(name)) lines.push_back(absl::StrCat(name, " has joined"));
    }
    for (const auto& [name, leaving] : *servers_) {
      if (!servers.contains(name)) lines.push_back(absl::StrCat(name, leaving ? " has left" : " is gone"));
    }
  }
  servers_ = std::move(servers);
  return lines;
}

std::vector<std::string> SummaryLines(std::string_view summary_json, const std::string& model_dir,
                                      const std::string& stopped_for) {
  const Json summary = Parse(summary_json);
  if (!summary.is_object()) return {"summary.json is not readable"};
  std::vector<std::string> lines;
  lines.push_back(absl::StrFormat("%s: %s, %s in %s, %.0f examples/s", Text(summary, "status"),
                                  Counted(static_cast<std::uint64_t>(Whole(summary, "commits")), "commit"),
                                  Counted(static_cast<std::uint64_t>(Whole(summary, "epochs")), "whole epoch"),
                                  Clockwise(Number(summary, "wall_seconds")), Number(summary, "examples_per_second")));
  const bool by_signal = !stopped_for.empty() && Text(summary, "status") == "stopped";
  const std::string reason = by_signal ? stopped_for : Text(summary, "reason");
  if (!reason.empty()) lines.push_back(absl::StrCat("reason: ", reason));
  lines.push_back(absl::StrCat("train loss ", Value(Field(summary, "train_loss"))));
  if (std::string eval = Metrics(Field(summary, "eval")); !eval.empty()) lines.push_back(absl::StrCat("eval: ", eval));
  if (const Json& best = Field(summary, "best"); best.is_object()) {
    lines.push_back(absl::StrCat("best: ", Text(best, "metric"), " ", Value(Field(best, "value")), " at ",
                                 Text(best, "checkpoint")));
  }
  if (std::string sha256 = Text(summary, "parameters_sha256"); !sha256.empty()) {
    lines.push_back(absl::StrCat("parameters_sha256 ", sha256));
  }
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
