#include "local_run.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/transport/transports.h"
#include "nlohmann/json.hpp"
#include "status_client.h"

namespace evenkeel::apps {
namespace {

constexpr int kChief = 0;  // the first process
constexpr Duration kTick = std::chrono::milliseconds(500);
constexpr Duration kStatusTimeout = std::chrono::milliseconds(400);
constexpr Duration kStartTimeout = std::chrono::seconds(60);
constexpr Duration kGraceOverDrain = std::chrono::seconds(2);
// A member that says that the job failed has it from the chief, which is not through with the end yet.
constexpr Duration kChiefMayFollow = std::chrono::seconds(5);
constexpr int kLogLines = 5;

TimePoint Now() { return Clock::Real().Now(); }
bool IsServer(absl::string_view name) { return name.substr(0, 3) == "ps:"; }
bool IsWorker(absl::string_view name) { return name.substr(0, 7) == "worker:"; }

}  // namespace

LocalRun::LocalRun(const LocalJobOptions& options, const Experiment& experiment, ProcessGroup group)
    : options_(options),
      grace_(experiment.membership.drain + kGraceOverDrain),
      stop_timeout_(experiment.membership.drain + experiment.membership.lease + experiment.eval.final_timeout + grace_),
      group_(std::move(group)) {}

absl::StatusOr<LocalRun> LocalRun::Create(const LocalJobOptions& options, const Experiment& experiment) {
  EK_ASSIGN_OR_RETURN(ProcessGroup group, ProcessGroup::Create());
  return LocalRun(options, experiment, std::move(group));
}

void LocalRun::Interrupt(int count) {
  interrupts_->store(count);
  group_.Wake();
}

// Starts the chief and reads the port that it listens on.
absl::StatusOr<int> LocalRun::StartChief() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError("pipe: no descriptors left");
  ProcessSpec spec = LocalChief(options_);
  spec.pass_descriptor = ends[1];
  const absl::StatusOr<int> started = group_.Start(spec);
  close(ends[1]);
  std::string text;
  const TimePoint until = Now() + kStartTimeout;
  while (started.ok() && Now() < until && text.find('\n') == std::string::npos && interrupts_->load() < 2) {
    pollfd ready{ends[0], POLLIN, 0};
    if (poll(&ready, 1, 100) <= 0) continue;
    char bytes[16];
    const ssize_t got = read(ends[0], bytes, sizeof bytes);
    if (got <= 0) break;  // it ended, or will tell no port
    text.append(bytes, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  EK_RETURN_IF_ERROR(started.status());
  int port = 0;
  if (!absl::SimpleAtoi(text, &port)) {
    return absl::AbortedError("the chief did not start");
  }
  return port;
}

absl::Status LocalRun::StartAll() {
  EK_ASSIGN_OR_RETURN(port_, StartChief());
  for (const ProcessSpec& spec : LocalMembers(options_, port_)) EK_RETURN_IF_ERROR(group_.Start(spec).status());
  display_.Say(absl::StrCat("started ", group_.entries().size(), " processes; chief at 127.0.0.1:", port_, ", logs in ",
                            options_.log_folder));
  return absl::OkStatus();
}

int LocalRun::Run() {
  if (absl::Status status = StartAll(); !status.ok()) {
    if (!group_.entries().empty() && absl::IsAborted(status)) {
      // Its own exit code tells more than ours; it has little left to do.
      const TimePoint until = Now() + grace_;
      while (group_.running(kChief) && Now() < until && interrupts_->load() < 2) group_.Wait(until);
    }
    group_.Stop(grace_);
    std::fprintf(stderr, "evenkeel launch: %s\n", std::string(status.message()).c_str());
    if (group_.entries().empty()) return static_cast<int>(ExitCodeFor(status));
    Report(kChief, "nothing was started");
    if (interrupts_->load() > 0) return static_cast<int>(ExitCode::kInterrupted);
    const ProcessExit& exit = *group_.entries()[kChief].exit;
    return exit.signalled || exit.ok() ? static_cast<int>(ExitCode::kFailed) : exit.value;
  }
  return Watch();
}

int LocalRun::Watch() {
  const std::unique_ptr<Transport> transport = MakeGrpcTransport({});
  StatusClient client(*transport, absl::StrCat("127.0.0.1:", port_));
  TimePoint next = Now();
  while (group_.running(kChief)) {
    for (int process : group_.Wait(next)) OnEnded(process);
    const TimePoint now = Now();
    if (interrupts_->load() > told_) OnInterrupt(now);
    if (told_ >= 2) break;
    if (give_up_at_ && now >= *give_up_at_) {
      group_.Stop(grace_);
      break;
    }
    if (now < next || !group_.running(kChief)) continue;
    next = now + kTick;
    if (auto status = client.Ask(kStatusTimeout); status.ok()) display_.Show(*status, now);
  }
  return FinishAfterChief();
}

void LocalRun::OnInterrupt(TimePoint now) {
  told_ = interrupts_->load();
  if (told_ >= 2) {
    display_.Say("killing all processes");
    group_.Kill();
    return;
  }
  display_.Say("stopping: the chief takes a checkpoint, then all end; once more ends them at once");
  group_.Signal(kChief, SIGTERM);
  if (!give_up_at_) give_up_at_ = now + stop_timeout_;
}

bool LocalRun::AnyTrainer() const {
  if (options_.chief_trains && group_.running(kChief)) return true;
  for (std::size_t i = 0; i < group_.entries().size(); ++i) {
    if (IsWorker(group_.entries()[i].name) && group_.running(static_cast<int>(i))) return true;
  }
  return false;
}

void LocalRun::OnEnded(int process) {
  const ProcessGroup::Entry& entry = group_.entries()[static_cast<std::size_t>(process)];
  if (process == kChief || entry.exit->ok() || told_ > 0 || give_up_at_) return;
  const TimePoint now = Now();
  const int code = entry.exit->signalled ? static_cast<int>(ExitCode::kFailed) : entry.exit->value;
  const bool of_the_job = !entry.exit->signalled && code == static_cast<int>(ExitCode::kFailed);
  const Duration chief_may_follow = of_the_job ? kChiefMayFollow : Duration::zero();
  if (IsServer(entry.name)) {
    Report(process, "the job cannot go on without it; all stop");
    give_up_at_ = now + chief_may_follow;
    failure_code_ = code;
  } else if (IsWorker(entry.name)) {
    const bool others = AnyTrainer();
    Report(process, others ? "the job goes on with the others" : "nobody is left to train; all stop");
    if (others) return;
    give_up_at_ = now + chief_may_follow;
    failure_code_ = code;
  } else {
    Report(process, "the job goes on without it");
  }
}

void LocalRun::Report(int process, const std::string& consequence) {
  const ProcessGroup::Entry& entry = group_.entries()[static_cast<std::size_t>(process)];
  std::string text = absl::StrCat(entry.name, " ended with ", entry.exit->ToString(), "; ", consequence);
  if (const std::string tail = LastLines(entry.log_file, kLogLines); !tail.empty()) {
    absl::StrAppend(&text, "\n  ", absl::StrReplaceAll(tail, {{"\n", "\n  "}}), "\n  (", entry.log_file, ")");
  }
  display_.Say(text);
}

// The chief has ended, or all were stopped: lets the others end by themselves, then makes them.
int LocalRun::FinishAfterChief() {
  // Those of a chief that was killed would only wait for it.
  const bool told = group_.running(kChief) || !group_.entries()[kChief].exit->signalled;
  const TimePoint until = Now() + (told ? grace_ : Duration::zero());
  while (group_.running_count() > 0 && Now() < until && interrupts_->load() < 2) group_.Wait(until);
  if (interrupts_->load() < 2) group_.Stop(grace_);
  group_.Kill();
  display_.Finish();
  return Conclude();
}

int LocalRun::Conclude() {
  const ProcessExit& chief = *group_.entries()[kChief].exit;
  if (interrupts_->load() >= 2) return static_cast<int>(ExitCode::kInterrupted);
  if (!chief.ok()) Report(kChief, "the job has failed");
  const auto summary = Storage::Posix().Read(JoinPath(options_.model_dir, "summary.json"));
  std::string status;
  if (chief.ok() || (!chief.signalled && chief.value == static_cast<int>(ExitCode::kFailed))) {
    if (summary.ok()) {
      for (const std::string& line : SummaryLines(*summary, options_.model_dir)) display_.Say(line);
      const auto json = nlohmann::json::parse(*summary, nullptr, false);
      if (json.is_object()) status = json.value("status", "");
    } else {
      display_.Say(std::string(summary.status().message()));
    }
  }
  if (told_ > 0) return static_cast<int>(ExitCode::kInterrupted);
  if (!chief.ok() && !chief.signalled) return chief.value;
  if (failure_code_ != 0) return failure_code_;
  if (chief.signalled) return static_cast<int>(ExitCode::kFailed);
  if (status == "stopped") return static_cast<int>(ExitCode::kInterrupted);
  return status == "finished" ? 0 : static_cast<int>(ExitCode::kFailed);
}

}  // namespace evenkeel::apps
