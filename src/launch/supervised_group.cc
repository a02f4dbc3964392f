#include "evenkeel/launch/supervised_group.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr int kLogLines = 5;

TimePoint Now() { return Clock::Real().Now(); }

}  // namespace

SupervisedGroup::SupervisedGroup(const SupervisorOptions& options, Callbacks callbacks, ProcessGroup group)
    : callbacks_(std::move(callbacks)), supervisor_(options), group_(std::move(group)) {}

absl::StatusOr<SupervisedGroup> SupervisedGroup::Create(const SupervisorOptions& options, Callbacks callbacks) {
  EK_ASSIGN_OR_RETURN(ProcessGroup group, ProcessGroup::Create());
  return SupervisedGroup(options, std::move(callbacks), std::move(group));
}

int SupervisedGroup::Add(ProcessSpec spec, RestartOn policy) {
  const int process = supervisor_.Add(spec.name, policy);
  std::error_code none;  // no log yet
  const std::uintmax_t size = std::filesystem::file_size(spec.log_file, none);
  logs_begin_.push_back(none ? 0 : static_cast<std::int64_t>(size));
  specs_.push_back(std::move(spec));
  places_.push_back(-1);
  return process;
}

absl::Status SupervisedGroup::Start(int process) {
  absl::Status status;
  Carry(supervisor_.Start(process, Now()), &status);
  return status;
}

void SupervisedGroup::Stop(int process, Duration grace) { Carry(supervisor_.Stop(process, grace, Now())); }

void SupervisedGroup::StopAll(Duration grace) { Carry(supervisor_.StopAll(grace, Now())); }

void SupervisedGroup::Signal(int process, int signal) {
  if (running(process)) group_.Signal(places_[static_cast<std::size_t>(process)], signal);
}

const ProcessGroup::Entry* SupervisedGroup::entry(int process) const {
  const int place = places_[static_cast<std::size_t>(process)];
  return place < 0 ? nullptr : &group_.entries()[static_cast<std::size_t>(place)];
}

bool SupervisedGroup::running(int process) const {
  const ProcessGroup::Entry* found = entry(process);
  return found != nullptr && !found->exit;
}

pid_t SupervisedGroup::pid(int process) const {
  const ProcessGroup::Entry* found = entry(process);
  return found == nullptr ? 0 : found->pid;
}

std::optional<ProcessExit> SupervisedGroup::exit(int process) const {
  const ProcessGroup::Entry* found = entry(process);
  return found == nullptr ? std::nullopt : found->exit;
}

absl::Status SupervisedGroup::Do(const StartProcess& action) {
  const auto at = static_cast<std::size_t>(action.process);
  if (places_[at] >= 0) {
    EK_RETURN_IF_ERROR(group_.StartAgain(places_[at], specs_[at]));
  } else {
    EK_ASSIGN_OR_RETURN(places_[at], group_.Start(specs_[at]));
    occupants_.push_back(action.process);
  }
  if (action.restart > 0) callbacks_.say(absl::StrCat(specs_[at].name, " runs again, process ", pid(action.process)));
  return absl::OkStatus();
}

std::string SupervisedGroup::LogTail(int process) const {
  const auto at = static_cast<std::size_t>(process);
  const std::string& log = specs_[at].log_file;
  const std::string tail = LastLines(log, kLogLines, logs_begin_[at]);
  if (tail.empty()) return "";
  return absl::StrCat("  ", absl::StrReplaceAll(tail, {{"\n", "\n  "}}), "\n  (", log, ")");
}

void SupervisedGroup::TellLog(int process) {
  if (const std::string tail = LogTail(process); !tail.empty()) callbacks_.say(tail);
}

void SupervisedGroup::Do(const TellEnd& action) {
  callbacks_.say(action.text);
  if (action.for_good) TellLog(action.process);
}

void SupervisedGroup::Carry(const SupervisorActions& actions, absl::Status* start_status) {
  for (const SupervisorAction& action : actions) {
    if (const auto* start = std::get_if<StartProcess>(&action)) {
      const absl::Status status = Do(*start);
      if (status.ok()) continue;
      const SupervisorActions told = supervisor_.OnStartFailed(start->process, std::string(status.message()));
      if (start_status != nullptr) {
        *start_status = status;  // the caller says it
      } else {
        Carry(told);
      }
    } else if (const auto* signal = std::get_if<SignalProcess>(&action)) {
      const int place = places_[static_cast<std::size_t>(signal->process)];
      if (signal->signal == SIGKILL) {
        group_.KillTree(place);
      } else {
        group_.Signal(place, signal->signal);
      }
    } else {
      Do(std::get<TellEnd>(action));
    }
  }
}

void SupervisedGroup::Wait(TimePoint deadline) {
  const std::vector<int> ended = group_.Wait(std::min(deadline, supervisor_.NextDeadline()));
  std::vector<std::pair<int, ProcessExit>> exits;
  for (const int place : ended) {
    exits.emplace_back(occupants_[static_cast<std::size_t>(place)],
                       *group_.entries()[static_cast<std::size_t>(place)].exit);
  }
  // All are known before one is judged: the chief's end makes the others' final.
  for (const auto& [process, exit] : exits) {
    if (callbacks_.on_exit) callbacks_.on_exit(process, exit);
  }
  for (const auto& [process, exit] : exits) Carry(supervisor_.OnExit(process, exit, Now()));
  Carry(supervisor_.Tick(Now()));
}

void SupervisedGroup::WaitForAll(TimePoint deadline) {
  const auto busy = [this] { return any_running() || supervisor_.NextDeadline() != kNever; };
  while (busy() && Now() < deadline) Wait(deadline);
}

void SupervisedGroup::Kill() {
  EndRestarts();
  StopAll(Duration::zero());
  while (any_running()) Wait(kNever);
}

}  // namespace evenkeel
