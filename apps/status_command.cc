#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "commands.h"
#include "evenkeel/config/cluster.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/status.h"
#include "evenkeel/transport/transports.h"
#include "options.h"
#include "progress.h"
#include "signals.h"
#include "status_client.h"

namespace evenkeel::apps {
namespace {

struct Options {
  std::string chief, model_dir;
  bool json = false, watch = false;
  double timeout_seconds = 5, interval_seconds = 1;
};

int Told(const absl::Status& status) {
  std::fprintf(stderr, "evenkeel status: %s\n", std::string(status.message()).c_str());
  return static_cast<int>(ExitCodeFor(status));
}

void Print(const Options& options, const std::string& answer) {
  if (options.json) {
    std::printf("%s\n", answer.c_str());
  } else {
    for (const std::string& line : FullStatusLines(answer)) std::printf("%s\n", line.c_str());
  }
}

ExitCode CodeOfEnd(const std::string& status) {
  if (status == "finished") return ExitCode::kOk;
  return status == "stopped" ? ExitCode::kInterrupted : ExitCode::kFailed;
}

// Until the job has ended, or the chief has been away for the timeout, or a signal.
class Watch {
 public:
  explicit Watch(const Options& options)
      : options_(options), signals_([this](int, const char*) {
          MutexLock lock(mutex_);
          interrupted_ = true;
          changed_.NotifyAll();
        }) {}

  int Run(StatusClient& client) {
    const Clock& clock = Clock::Real();
    const Duration timeout = FromSeconds(options_.timeout_seconds);
    TimePoint answered = clock.Now();
    for (;;) {
      const TimePoint asked = clock.Now();
      const auto answer = client.Ask(std::min(timeout, std::max<Duration>(answered + timeout - asked, kLeast)));
      const TimePoint now = clock.Now();
      if (answer.ok()) {
        answered = now;
        away_ = false;
        Show(*answer, now);
        if (const std::string end = EndStatus(*answer); !end.empty()) {
          return Ended(end, CodeOfEnd(end));
        }
      } else if (client.chief_left()) {
        return Ended("the chief has left and did not say how; summary.json in its model_dir may", ExitCode::kFailed);
      } else if (now - answered >= timeout) {
        display_.Finish();
        return Told(answer.status());
      } else if (!std::exchange(away_, true) && !options_.json) {
        display_.Say(absl::StrFormat("no answer: %s; ends in %.0f s unless the chief comes back",
                                     std::string(answer.status().message()), ToSeconds(answered + timeout - now)));
      }
      MutexLock lock(mutex_);
      const TimePoint next = asked + FromSeconds(options_.interval_seconds);
      while (!interrupted_ && clock.Now() < next) changed_.WaitUntil(mutex_, next);
      if (interrupted_) return static_cast<int>(ExitCode::kInterrupted);
    }
  }

 private:
  static constexpr Duration kLeast = std::chrono::milliseconds(100);

  int Ended(const std::string& how, ExitCode code) {
    display_.Finish();
    if (!options_.json) display_.Say(absl::StrCat("the job has ended: ", how));
    return static_cast<int>(code);
  }

  void Show(const std::string& answer, TimePoint now) {
    if (options_.json) {
      Print(options_, answer);
      std::fflush(stdout);
    } else {
      for (const std::string& line : news_.Take(answer)) display_.Say(line);
      display_.Show(FullStatusLines(answer), StatusLine(answer), now);
    }
  }

  const Options& options_;
  Display display_;
  MembershipNews news_;
  bool away_ = false;  // the chief; said
  Mutex mutex_;
  CondVar changed_;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  const Signals signals_;  // last: its thread uses the others
};

int Status(const Options& options) {
  if (!options.model_dir.empty()) {
    return Told(absl::InvalidArgumentError(
        absl::StrCat("--model-dir ", options.model_dir,
                     ": a running job is asked with --chief HOST:PORT, its chief's address; what a job "
                     "that has ended has left is in ",
                     options.model_dir, "/summary.json")));
  }
  if (options.chief.empty()) {
    return Told(
        absl::InvalidArgumentError("no chief: give --chief HOST:PORT, the address at which evenkeel-chief listens"));
  }
  const auto address = ParseChiefAddress(options.chief);
  if (!address.ok()) return Told(address.status());
  std::optional<Watch> watch;  // before the transport: its threads inherit the blocked signals
  if (options.watch) watch.emplace(options);
  const std::unique_ptr<Transport> transport = MakeGrpcTransport({});
  StatusClient client(*transport, address->ToString());
  if (watch) return watch->Run(client);
  const auto answer = client.Ask(FromSeconds(options.timeout_seconds));
  if (!answer.ok()) return Told(answer.status());
  Print(options, *answer);
  return 0;
}

}  // namespace

void AddStatusCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "status", "Says how a running job stands: members, ranks, leases, whom each waits for, samples, checkpoints");
  command->add_option("--chief", options->chief, "The chief's address; required")->type_name("HOST:PORT");
  command->add_option("--model-dir", options->model_dir)->group("");  // not offered, but tried
  command->add_flag("--json", options->json, "As the chief tells it, a JSON object; with --watch one a line");
  CLI::Option* watch = command->add_flag(
      "--watch", options->watch,
      "Goes on until the job has ended, in place on a terminal, else a line at a change; members that come and go are "
      "lines that stay. Exit code 0 when the job has finished, 130 when it was stopped, 1 when it failed, 4 when the "
      "chief is away for longer than the timeout");
  command->add_option("--interval-seconds", options->interval_seconds, "How often --watch asks")
      ->capture_default_str()
      ->check(Within(0.05, 3600.0))
      ->needs(watch);
  command->add_option("--timeout-seconds", options->timeout_seconds, "Waits at most so long for an answer")
      ->capture_default_str()
      ->check(Within(0.1, 600.0));
  command->callback([&chosen, options] { chosen = [options] { return Status(*options); }; });
}

}  // namespace evenkeel::apps
