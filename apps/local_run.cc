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
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "evenkeel/core/plural.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"
#include "nlohmann/json.hpp"

namespace evenkeel::apps {
namespace {

constexpr int kChief = 0;  // the first process
constexpr Duration kStatusTimeout = std::chrono::milliseconds(400);
constexpr Duration kStartTimeout = std::chrono::seconds(60);
constexpr Duration kGraceOverDrain = std::chrono::seconds(2);
// A member that says that the job failed has it from the chief, which is not through with the end yet.
constexpr Duration kChiefMayFollow = std::chrono::seconds(5);

TimePoint Now() { return Clock::Real().Now(); }
bool IsServer(absl::string_view name) { return name.substr(0, 3) == "ps:"; }
bool IsWorker(absl::string_view name) { return name.substr(0, 7) == "worker:"; }

bool IsTraining(const std::string& status_json) {
  const auto json = nlohmann::json::parse(status_json, nullptr, false);
  return json.is_object() && json.value("phase", "") == "running" && json.value("waiting_for", "?").empty();
}

int CodeOf(const ProcessExit& exit) {
  return exit.signalled || exit.ok() ? static_cast<int>(ExitCode::kFailed) : exit.value;
}

}  // namespace

LocalRun::LocalRun(const LocalRunOptions& options, const Experiment& experiment)
    : options_(options),
      grace_(experiment.membership.drain + kGraceOverDrain),
      stop_timeout_(experiment.membership.drain + experiment.membership.lease + experiment.eval.final_timeout + grace_),
      answer_within_(experiment.membership.chief_timeout / 2) {}

absl::StatusOr<std::unique_ptr<LocalRun>> LocalRun::Create(const LocalRunOptions& options,
                                                           const Experiment& experiment) {
  std::unique_ptr<LocalRun> run(new LocalRun(options, experiment));
  SupervisedGroup::Callbacks callbacks{
      [at = run.get()](const std::string& text) { at->display_.Say(text); },
      [at = run.get()](int process, const ProcessExit& exit) { at->OnExit(process, exit); }};
  EK_ASSIGN_OR_RETURN(SupervisedGroup group, SupervisedGroup::Create(options.supervisor, std::move(callbacks)));
  run->processes_.emplace(std::move(group));
  return run;
}

void LocalRun::Interrupt(int count) {
  interrupts_.store(count);
  processes_->Wake();
}

// Starts the chief and reads the port that it listens on.
absl::StatusOr<int> LocalRun::StartChief() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError("pipe: no descriptors left");
  ProcessSpec spec = LocalChief(options_.job);
  spec.pass_descriptor = ends[1];
  processes_->Add(std::move(spec), RestartOn::kSignal);
  const absl::Status started = processes_->Start(kChief);
  close(ends[1]);
  std::string text;
  const TimePoint until = Now() + kStartTimeout;
  while (started.ok() && Now() < until && text.find('\n') == std::string::npos && interrupts_.load() < 2) {
    pollfd ready{ends[0], POLLIN, 0};
    if (poll(&ready, 1, 100) <= 0) continue;
    char bytes[16];
    const ssize_t got = read(ends[0], bytes, sizeof bytes);
    if (got <= 0) break;  // it ended, or will tell no port
    text.append(bytes, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  EK_RETURN_IF_ERROR(started);
  int port = 0;
  if (!absl::SimpleAtoi(text, &port)) {
    return absl::AbortedError("the chief did not start");
  }
  processes_->Replace(kChief, LocalChiefAgain(options_.job, port));
  return port;
}

absl::Status LocalRun::StartAll() {
  EK_ASSIGN_OR_RETURN(port_, StartChief());
  answered_ = Now();
  transport_ = MakeGrpcTransport({});  // starts threads, so not before the signals are blocked
  client_.emplace(*transport_, absl::StrCat("127.0.0.1:", port_));
  first_worker_ = 1 + options_.job.servers;
  int started = 1;
  for (ProcessSpec& spec : LocalMembers(options_.job, port_)) {
    const bool later = !options_.trace.empty() && IsWorker(spec.name);
    const int process = processes_->Add(std::move(spec), RestartOn::kFailure);
    if (later) continue;
    EK_RETURN_IF_ERROR(processes_->Start(process));
    ++started;
  }
  display_.Say(absl::StrCat("started ", started, " processes; chief at 127.0.0.1:", port_, ", logs in ",
                            options_.job.log_folder));
  if (!options_.trace.empty()) trace_.emplace(options_.trace, options_.job.workers, options_.time_scale);
  return absl::OkStatus();
}

void LocalRun::PlayTrace(TimePoint now) {
  if (!trace_ || told_ > 0 || give_up_at_) return;
  for (const TracePlayer::Change& change : trace_->Due(now)) {
    const int process = first_worker_ + change.place;
    const std::string& name = processes_->supervisor().name(process);
    if (!change.add) {
      display_.Say(absl::StrCat(name, " goes with ", change.node));
      processes_->Stop(process, options_.notice);
      continue;
    }
    display_.Say(absl::StrCat(name, " comes with ", change.node));
    if (absl::Status status = processes_->Start(process); !status.ok()) {
      display_.Say(std::string(status.message()));
    }
  }
  if (trace_->over()) {
    display_.Say(absl::StrCat("the trace is over; ", AliveTrainers(), " workers stay"));
    trace_.reset();
    CheckTrainers();
  }
}

int LocalRun::ChiefDidNotStart(const absl::Status& status) {
  processes_->EndRestarts();
  const bool any = processes_->supervisor().size() > 0 && processes_->pid(kChief) != 0;
  if (any && absl::IsAborted(status)) {
    // Its own exit code tells more than ours; it has little left to do.
    const TimePoint until = Now() + grace_;
    while (processes_->running(kChief) && Now() < until && interrupts_.load() < 2) processes_->Wait(until);
  }
  processes_->StopAll(grace_);
  processes_->WaitForAll(Now() + grace_ + kGraceOverDrain);
  processes_->Kill();
  std::fprintf(stderr, "evenkeel launch: %s\n", std::string(status.message()).c_str());
  if (!any) return static_cast<int>(ExitCodeFor(status));
  const ProcessExit exit = *processes_->exit(kChief);
  display_.Say(absl::StrCat("chief:0 ended with ", exit.ToString(), "; nothing was started"));
  processes_->TellLog(kChief);
  if (interrupts_.load() > 0) return static_cast<int>(ExitCode::kInterrupted);
  return CodeOf(exit);
}

int LocalRun::Run() {
  if (absl::Status status = StartAll(); !status.ok()) return ChiefDidNotStart(status);
  return Watch();
}

int LocalRun::Watch() {
  TimePoint next = Now();
  while (chief_alive()) {
    const TimePoint now = Now();
    PlayTrace(now);
    if (interrupts_.load() > told_) OnInterrupt();
    if (told_ >= 2) break;
    if (give_up_at_ && now >= *give_up_at_) break;
    for (const int process : std::exchange(failed_, {})) OnFailed(process);
    if (!chief_alive()) break;
    if (now >= next) {
      next = now + options_.monitor_interval;
      AskStatus(now);
    }
    TimePoint until = next;
    if (trace_) until = std::min(until, trace_->Next());
    if (give_up_at_) until = std::min(until, *give_up_at_);
    processes_->Wait(until);
  }
  return FinishAfterChief();
}

void LocalRun::AskStatus(TimePoint now) {
  if (auto status = client_->Ask(kStatusTimeout); status.ok()) {
    answered_ = now;
    for (const std::string& line : news_.Take(*status)) display_.Say(line);
    display_.Show(*status, now);
    if (trace_ && !trace_->begun() && IsTraining(*status)) trace_->Begin(now);
    StartServersWanted(*status);
    SayIfServersStandBy(*status);
    return;
  }
  if (!processes_->running(kChief) || options_.supervisor.max_restarts == 0 || told_ > 0) {
    answered_ = now;
  } else if (now - answered_ > answer_within_) {
    display_.Say(absl::StrFormat("chief:0 has not answered for %.0f s; it is killed", ToSeconds(now - answered_)));
    answered_ = now;
    processes_->Signal(kChief, SIGKILL);
  }
}

void LocalRun::StartServersWanted(const std::string& status_json) {
  const auto status = nlohmann::json::parse(status_json, nullptr, false);
  if (!status.is_object() || told_ > 0 || give_up_at_ || servers_failed_) return;
  const nlohmann::json wanted = status.value("servers_wanted", nlohmann::json(nullptr));
  if (!wanted.is_number_unsigned()) return;
  if (const auto count = wanted.get<std::size_t>(); count > kMaxOfRole) {
    if (std::exchange(servers_refused_, count) == count) return;
    return display_.Say(absl::StrCat(count, " servers are ordered; launch runs at most ", kMaxOfRole,
                                     ", so none is started: order fewer with `evenkeel scale`"));
  }
  std::set<std::string> here, leaving;
  for (const char* list : {"servers", "spare_servers"}) {
    for (const nlohmann::json& server : status.value(list, nlohmann::json::array())) {
      (server.value("leaving", false) ? leaving : here).insert(server.value("name", ""));
    }
  }
  const Supervisor& supervisor = processes_->supervisor();
  for (int i = 0; i < supervisor.size(); ++i) {
    const std::string& name = supervisor.name(i);
    if (IsServer(name) && supervisor.alive(i) && !leaving.contains(name)) here.insert(name);
  }
  std::set<std::string> taken = here;
  taken.insert(leaving.begin(), leaving.end());
  while (here.size() < wanted.get<std::size_t>()) {
    const std::optional<int> process = IdleServer(taken);
    absl::Status started = process ? processes_->Start(*process)
                                   : absl::ResourceExhaustedError(
                                         absl::StrCat("launch runs at most ", Supervisor::kMaxProcesses, " processes"));
    if (!started.ok()) {
      servers_failed_ = true;
      return display_.Say(absl::StrCat("no further server is started: ", started.message()));
    }
    const std::string& name = supervisor.name(*process);
    display_.Say(absl::StrCat(name, " is added, process ", processes_->pid(*process)));
    here.insert(name);
    taken.insert(name);
  }
}

void LocalRun::SayIfServersStandBy(const std::string& status_json) {
  const auto status = nlohmann::json::parse(status_json, nullptr, false);
  if (said_standing_by_ || !status.is_object() || status.value("phase", "") != "running") return;
  if (!status.value("servers_wanted", nlohmann::json(nullptr)).is_null()) return;
  const std::size_t sharing = status.value("servers", nlohmann::json::array()).size();
  std::size_t standing_by = 0;
  for (const nlohmann::json& server : status.value("spare_servers", nlohmann::json::array())) {
    standing_by += server.value("leaving", false) ? 0 : 1;
  }
  if (standing_by == 0 || sharing >= static_cast<std::size_t>(options_.job.servers)) return;
  said_standing_by_ = true;
  display_.Say(absl::StrCat("the parameters are with ", Counted(sharing, "server"), "; ", standing_by,
                            " more stand by: `evenkeel scale --ps ", options_.job.servers, " --chief 127.0.0.1:", port_,
                            "` gives them their share"));
}

// One that has ended, or a new one.
std::optional<int> LocalRun::IdleServer(const std::set<std::string>& taken) {
  int index = 0;
  while (taken.contains(absl::StrCat("ps:", index))) ++index;
  const std::string name = absl::StrCat("ps:", index);
  const Supervisor& supervisor = processes_->supervisor();
  for (int i = 0; i < supervisor.size(); ++i) {
    if (supervisor.name(i) == name) return i;
  }
  if (supervisor.size() >= Supervisor::kMaxProcesses) return std::nullopt;
  return processes_->Add(LocalServer(options_.job, port_, index), RestartOn::kFailure);
}

void LocalRun::OnInterrupt() {
  told_ = interrupts_.load();
  processes_->EndRestarts();
  if (told_ >= 2) {
    display_.Say("killing all processes");
    processes_->Kill();
    return;
  }
  display_.Say("stopping: the chief takes a checkpoint, then all end; once more ends them at once");
  processes_->Stop(kChief, stop_timeout_);
}

int LocalRun::AliveTrainers() const {
  int alive = options_.job.chief_trains && chief_alive() ? 1 : 0;
  for (int i = 0; i < options_.job.workers; ++i) alive += processes_->supervisor().alive(first_worker_ + i) ? 1 : 0;
  return alive;
}

// Before the end is judged: is it the job's end, of which a member may know before us?
void LocalRun::OnExit(int process, const ProcessExit& exit) {
  if (process == kChief && !exit.signalled) return processes_->EndRestarts();
  if (process == kChief || exit.ok() || told_ > 0 || give_up_at_) return;
  failed_.push_back(process);
  if (exit.signalled || exit.value != static_cast<int>(ExitCode::kFailed) || !processes_->running(kChief)) return;
  const auto status = client_->Ask(kStatusTimeout);
  if (status.ok() ? EndStatus(*status).empty() : !client_->chief_left()) return;
  processes_->EndRestarts();
  failed_.clear();
  give_up_at_ = Now() + stop_timeout_;  // the chief ends by itself
}

int LocalRun::AliveServers() const {
  int alive = 0;
  for (int i = 0; i < processes_->supervisor().size(); ++i) {
    alive += IsServer(processes_->supervisor().name(i)) && processes_->supervisor().alive(i) ? 1 : 0;
  }
  return alive;
}

void LocalRun::OnFailed(int process) {
  if (processes_->supervisor().state(process) != Supervisor::State::kFailed || give_up_at_ || told_ > 0) return;
  const std::string& name = processes_->supervisor().name(process);
  const auto exit = processes_->exit(process);
  const bool own_verdict = exit && !exit->signalled && exit->value != static_cast<int>(ExitCode::kFailed) &&
                           exit->value != static_cast<int>(ExitCode::kDeadline);  // wrong input, refused
  if (IsServer(name) && (own_verdict || AliveServers() == 0)) {
    GiveUp(process, absl::StrCat("the job cannot go on without ", name));
  } else if (IsServer(name)) {
    display_.Say("the job goes back to its last checkpoint, and on with the other servers");
  } else if (!IsWorker(name)) {
    display_.Say(absl::StrCat("the job goes on without ", name));
  } else if (trace_ || AliveTrainers() >= options_.least_trainers) {
    display_.Say(AliveTrainers() > 0 ? "the job goes on with the others" : "the job waits for a worker to join");
  } else {
    failure_code_ = CodeOf(*processes_->exit(process));
    CheckTrainers();
  }
}

void LocalRun::CheckTrainers() {
  const int alive = AliveTrainers();
  if (alive >= options_.least_trainers) return;
  std::string why = alive == 0 ? "nobody is left to train"
                               : absl::StrCat(alive, " of at least ", options_.least_trainers, " are left to train");
  int last = first_worker_;
  for (int i = 0; i < options_.job.workers; ++i) {
    if (processes_->exit(first_worker_ + i)) last = first_worker_ + i;
  }
  GiveUp(last, why);
}

void LocalRun::GiveUp(int process, const std::string& why) {
  gave_up_ = why;
  const auto exit = processes_->exit(process);
  const bool of_the_job = exit && !exit->signalled && exit->value == static_cast<int>(ExitCode::kFailed);
  if (failure_code_ == 0) failure_code_ = exit ? CodeOf(*exit) : static_cast<int>(ExitCode::kFailed);
  give_up_at_ = Now() + (of_the_job ? kChiefMayFollow : Duration::zero());
  processes_->EndRestarts();
  display_.Say(absl::StrCat(why, "; all stop"));
}

// The chief has ended, or all are to stop: lets the others end by themselves, then makes them.
int LocalRun::FinishAfterChief() {
  processes_->EndRestarts();
  if (told_ < 2) {
    const auto chief = processes_->exit(kChief);
    // Those of a chief that was killed would only wait for it.
    if (chief && !chief->signalled) {
      const TimePoint until = Now() + grace_;
      while (processes_->any_running() && Now() < until && interrupts_.load() < 2) processes_->Wait(until);
    }
    processes_->StopAll(grace_);
    while (processes_->any_running() && interrupts_.load() < 2) processes_->Wait(Now() + grace_);
  }
  processes_->Kill();
  display_.Finish();
  return Conclude();
}

int LocalRun::Conclude() {
  const ProcessExit chief = *processes_->exit(kChief);
  if (interrupts_.load() >= 2) return static_cast<int>(ExitCode::kInterrupted);
  if (!chief.ok()) {
    display_.Say(absl::StrCat("chief:0 ended with ", chief.ToString(), "; the job has failed"));
    if (!chief.signalled) processes_->TellLog(kChief);  // else it was shown when it was not started again
  }
  const auto summary = Storage::Posix().Read(JoinPath(options_.job.model_dir, "summary.json"));
  std::string status;
  if (chief.ok() || (!chief.signalled && chief.value == static_cast<int>(ExitCode::kFailed))) {
    if (summary.ok()) {
      for (const std::string& line : SummaryLines(*summary, options_.job.model_dir, gave_up_)) display_.Say(line);
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
