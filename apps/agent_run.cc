#include "agent_run.h"

#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "progress.h"

namespace evenkeel::apps {
namespace {

constexpr Duration kStatusTimeout = std::chrono::milliseconds(400);

TimePoint Now() { return Clock::Real().Now(); }

void Say(const std::string& text) {
  std::printf("agent: %s\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace

AgentRun::AgentRun(const AgentRunOptions& options) : options_(options) {}

absl::StatusOr<std::unique_ptr<AgentRun>> AgentRun::Create(const AgentRunOptions& options) {
  std::unique_ptr<AgentRun> run(new AgentRun(options));
  SupervisedGroup::Callbacks callbacks{
      Say, [at = run.get()](int process, const ProcessExit& exit) { at->OnExit(process, exit); }};
  EK_ASSIGN_OR_RETURN(SupervisedGroup group, SupervisedGroup::Create(options.supervisor, std::move(callbacks)));
  run->processes_.emplace(std::move(group));
  for (const AgentTask& task : options.tasks.tasks) run->processes_->Add(task.spec, task.policy);
  return run;
}

void AgentRun::Interrupt(int count) {
  interrupts_.store(count);
  processes_->Wake();
}

void AgentRun::AskChief() {
  if (!client_ || job_ended_) return;
  const auto status = client_->Ask(kStatusTimeout);
  job_ended_ = status.ok() ? !EndStatus(*status).empty() : client_->chief_left();
  if (!job_ended_) return;
  processes_->EndRestarts();
}

void AgentRun::OnExit(int process, const ProcessExit& exit) {
  const std::string& name = processes_->supervisor().name(process);
  if (!exit.ok() && told_ == 0 && !exit.signalled) AskChief();
  if (exit.ok() || told_ > 0 || job_ended_) Say(absl::StrCat(name, " ended with ", exit.ToString()));
}

int AgentRun::Run() {
  if (options_.asks_chief && !options_.tasks.chief_address.empty()) {
    transport_ = MakeGrpcTransport({});  // starts threads, so not before the signals are blocked
    client_.emplace(*transport_, options_.tasks.chief_address);
  }
  for (int i = 0; i < processes_->supervisor().size(); ++i) {
    const std::string& name = processes_->supervisor().name(i);
    if (absl::Status status = processes_->Start(i); !status.ok()) {
      Say(std::string(status.message()));
      processes_->StopAll(options_.grace);
      processes_->WaitForAll(Now() + options_.grace + options_.monitor_interval);
      processes_->Kill();
      return static_cast<int>(ExitCodeFor(status));
    }
    Say(absl::StrCat(name, " started, process ", processes_->pid(i)));
  }
  const auto busy = [this] {
    for (int i = 0; i < processes_->supervisor().size(); ++i) {
      if (processes_->running(i) || processes_->supervisor().alive(i)) return true;
    }
    return false;
  };
  TimePoint next = Now() + options_.monitor_interval;
  while (busy()) {
    if (interrupts_.load() > told_) {
      told_ = interrupts_.load();
      Say(told_ == 1 ? "told to stop; all leave" : "killing all processes");
      processes_->EndRestarts();
      if (told_ >= 2) {
        processes_->Kill();
        return static_cast<int>(ExitCode::kInterrupted);
      }
      processes_->StopAll(options_.grace);
    }
    processes_->Wait(next);
    if (Now() < next) continue;
    next = Now() + options_.monitor_interval;
    if (told_ == 0) AskChief();
  }
  return Conclude();
}

int AgentRun::Conclude() const {
  for (int i = 0; i < processes_->supervisor().size(); ++i) {
    const auto exit = processes_->exit(i);
    if (processes_->supervisor().killed(i)) return static_cast<int>(ExitCode::kFailed);
    if (!exit || exit->ok()) continue;
    const bool as_told = told_ > 0 && exit->signalled && exit->value == SIGTERM;
    if (as_told) continue;
    return exit->signalled ? static_cast<int>(ExitCode::kFailed) : exit->value;
  }
  return 0;
}

}  // namespace evenkeel::apps
