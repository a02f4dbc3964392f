#include "evenkeel/launch/supervisor.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

Supervisor::Supervisor(const SupervisorOptions& options) : options_(options), jitter_(options.jitter_key) {}

int Supervisor::Add(std::string name, RestartOn policy) {
  EK_CHECK(processes_.size() < static_cast<std::size_t>(kMaxProcesses));
  processes_.push_back(Process{.name = std::move(name), .policy = policy});
  return size() - 1;
}

bool Supervisor::alive(int process) const {
  const Process& p = At(process);
  return p.state == State::kRunning || p.state == State::kWaiting || (p.state == State::kStopping && p.start_after_end);
}

StartProcess Supervisor::Begin(int process, TimePoint now) {
  Process& p = At(process);
  p.state = State::kRunning;
  p.started = now;
  p.due = kNever;
  p.start_after_end = false;
  p.killed = false;
  return StartProcess{process, p.restarts};
}

SupervisorActions Supervisor::Start(int process, TimePoint now) {
  Process& p = At(process);
  if (p.state == State::kRunning) return {};
  p.restarts = 0;
  if (p.state == State::kStopping) {
    p.start_after_end = true;
    return {};
  }
  return {Begin(process, now)};
}

SupervisorActions Supervisor::Stop(int process, Duration grace, TimePoint now) {
  Process& p = At(process);
  p.start_after_end = false;
  switch (p.state) {
    case State::kIdle:
    case State::kEnded:
    case State::kFailed:
      return {};
    case State::kWaiting:
      p.state = State::kEnded;
      p.due = kNever;
      return {};
    case State::kRunning:
    case State::kStopping:
      break;
  }
  const bool first = p.state == State::kRunning;
  p.state = State::kStopping;
  if (grace <= Duration::zero()) {
    p.due = kNever;
    return {SignalProcess{process, SIGKILL}};
  }
  // A later, longer grace does not put off the kill that was announced.
  p.due = first ? now + grace : std::min(p.due, now + grace);
  if (!first) return {};
  return {SignalProcess{process, SIGTERM}};
}

SupervisorActions Supervisor::StopAll(Duration grace, TimePoint now) {
  SupervisorActions actions;
  for (int i = 0; i < size(); ++i) {
    for (SupervisorAction& action : Stop(i, grace, now)) actions.emplace_back(std::move(action));
  }
  return actions;
}

void Supervisor::EndRestarts() {
  restarts_ended_ = true;
  for (Process& p : processes_) {
    p.start_after_end = false;
    if (p.state != State::kWaiting) continue;
    p.state = State::kFailed;
    p.due = kNever;
  }
}

std::string Supervisor::WhyFinal(const Process& p, const ProcessExit& exit) const {
  const auto code = static_cast<ExitCode>(exit.signalled ? -1 : exit.value);
  if (!exit.signalled) {
    if (p.policy == RestartOn::kSignal) return "that is its own verdict";
    if (p.policy == RestartOn::kFailure) {
      if (code == ExitCode::kWrongInput) return "its input stays wrong";
      if (code == ExitCode::kRefused) return "it was refused";
      if (code != ExitCode::kFailed && code != ExitCode::kDeadline) return "such an end is final";
    }
  }
  if (p.policy == RestartOn::kNever || options_.max_restarts == 0) return "it is not started again";
  if (p.restarts >= options_.max_restarts) {
    return absl::StrCat("it has had its ", options_.max_restarts,
                        options_.max_restarts == 1 ? " restart" : " restarts");
  }
  return "";
}

Duration Supervisor::Delay(int restart) {
  Duration delay = options_.first_delay;
  for (int i = 1; i < restart && delay < options_.longest_delay; ++i) delay *= 2;
  delay = std::min(delay, options_.longest_delay);
  return std::chrono::duration_cast<Duration>(delay * (0.5 + 0.5 * jitter_.NextDouble()));
}

SupervisorActions Supervisor::OnExit(int process, const ProcessExit& exit, TimePoint now) {
  Process& p = At(process);
  p.due = kNever;
  if (p.state == State::kStopping) {
    if (std::exchange(p.start_after_end, false)) return {Begin(process, now)};
    p.state = State::kEnded;
    return {};
  }
  if (exit.ok()) {
    p.state = State::kEnded;
    return {};
  }
  if (restarts_ended_) {
    p.state = State::kFailed;
    return {};
  }
  const bool waited_in_vain = !exit.signalled && exit.value == static_cast<int>(ExitCode::kDeadline);
  if (!waited_in_vain && now - p.started >= options_.healthy_after) p.restarts = 0;
  const std::string ended = absl::StrCat(p.name, " ended with ", exit.ToString(), "; ");
  if (const std::string why = WhyFinal(p, exit); !why.empty()) {
    p.state = State::kFailed;
    return {TellEnd{process, absl::StrCat(ended, why), true}};
  }
  ++p.restarts;
  const Duration delay = Delay(p.restarts);
  p.state = State::kWaiting;
  p.due = now + delay;
  return {TellEnd{process,
                  absl::StrFormat("%sstarts again in %.1f s (restart %d of %d)", ended, ToSeconds(delay), p.restarts,
                                  options_.max_restarts),
                  false}};
}

SupervisorActions Supervisor::OnStartFailed(int process, const std::string& reason) {
  Process& p = At(process);
  p.state = State::kFailed;
  p.due = kNever;
  return {TellEnd{process, reason, true}};
}

SupervisorActions Supervisor::Tick(TimePoint now) {
  SupervisorActions actions;
  for (int i = 0; i < size(); ++i) {
    Process& p = At(i);
    if (p.due > now) continue;
    if (p.state == State::kWaiting) {
      actions.emplace_back(Begin(i, now));
    } else if (p.state == State::kStopping) {
      p.due = kNever;
      p.killed = true;
      actions.emplace_back(SignalProcess{i, SIGKILL});
    }
  }
  return actions;
}

TimePoint Supervisor::NextDeadline() const {
  TimePoint next = kNever;
  for (const Process& p : processes_) next = std::min(next, p.due);
  return next;
}

}  // namespace evenkeel
