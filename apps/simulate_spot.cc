#include "simulate_spot.h"

#include <sys/resource.h>

#include <chrono>
#include <cstdio>

#include "evenkeel/core/status.h"

namespace evenkeel::apps {
namespace {

// What a role's heap differs by from moment to moment, and a bounded memory of the dead.
constexpr std::int64_t kMayGrowBytes = 256 << 10;

class Stopwatch {
 public:
  double Seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

long long Long(std::int64_t number) { return static_cast<long long>(number); }

double PeakMemoryMiB() {
  rusage usage{};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? static_cast<double>(usage.ru_maxrss) / 1024 : 0;
}

void PrintSpot(const sim::Scenario& scenario, const sim::Verdict& verdict, double wall_seconds) {
  std::printf("trace of %.2f h: %lld joins, %lld leaves, %lld kills, at most %lld members\n",
              static_cast<double>(scenario.ends_at_ms) / 3.6e6, Long(verdict.joins), Long(verdict.leaves),
              Long(verdict.kills), Long(verdict.members_most));
  std::printf("commits %lld, dropped updates %lld, longest gap between commits %.2f s, below workers_min %.1f s\n",
              Long(verdict.commits), Long(verdict.dropped), verdict.longest_gap_seconds, verdict.below_min_seconds);
  std::printf("goodput %.5f: %lld samples survive of %.1f computed\n", verdict.Goodput(),
              Long(verdict.samples_surviving), verdict.samples_computed);
  std::printf("nodes computed in %.1f%% of the %.1f hours that they were there\n",
              verdict.node_seconds > 0 ? 100 * verdict.computing_seconds / verdict.node_seconds : 0,
              verdict.node_seconds / 3600);
  std::printf(
      "simulated in %.1f s: %lld events, at most %lld queued, at most %lld messages under way in a stream, %.0f MiB\n",
      wall_seconds, Long(verdict.events), Long(verdict.most_events_queued), Long(verdict.most_messages_queued),
      PeakMemoryMiB());
  std::printf("trace hash %016llx\n", static_cast<unsigned long long>(verdict.trace_hash));
}

}  // namespace

absl::StatusOr<bool> SimulateSpot(const SpotCommand& command) {
  std::vector<std::vector<AvailabilityEvent>> traces;
  for (const std::string& file : command.files) {
    EK_ASSIGN_OR_RETURN(std::vector<AvailabilityEvent> trace, LoadAvailability(file));
    traces.push_back(std::move(trace));
  }
  sim::SpotOptions options = command.options;
  options.removal = command.removal == "leave"  ? sim::Removal::kLeave
                    : command.removal == "kill" ? sim::Removal::kKill
                                                : sim::Removal::kVanish;
  EK_ASSIGN_OR_RETURN(const sim::Scenario scenario, sim::MakeSpotScenario(traces, options));
  std::fprintf(stderr, "simulating %.2f h; a higher --time-scale makes that shorter\n",
               static_cast<double>(scenario.ends_at_ms) / 3.6e6);
  const Stopwatch watch;
  const sim::Verdict verdict = sim::Simulate(scenario);
  EK_RETURN_IF_ERROR(verdict.invalid);
  PrintSpot(scenario, verdict, watch.Seconds());
  if (!verdict.broken.empty()) std::printf("BROKEN: %s\n", verdict.broken.c_str());
  std::fflush(stdout);
  return verdict.broken.empty();
}

absl::StatusOr<bool> SimulateSoak(const sim::SoakOptions& options) {
  std::int64_t chief_bytes = 0, server_bytes = 0;
  for (std::int64_t commits : {options.commits / 4, options.commits}) {
    sim::SoakOptions part = options;
    part.commits = commits;
    const Stopwatch watch;
    const sim::Verdict verdict = sim::Simulate(sim::MakeSoakScenario(part));
    if (!verdict.broken.empty()) {
      std::printf("BROKEN: %s\n", verdict.broken.c_str());
      return false;
    }
    if (verdict.chief_bytes < 0) {
      return absl::UnimplementedError("--soak needs the C library's own allocator, to weigh what a role holds");
    }
    std::printf("%lld commits, %lld joins, %lld fenced or left: chief %lld bytes, servers %lld bytes; %.1f s\n",
                Long(verdict.commits), Long(verdict.joins), Long(verdict.fenced), Long(verdict.chief_bytes),
                Long(verdict.server_bytes), watch.Seconds());
    std::fflush(stdout);
    if (commits == options.commits &&
        (verdict.chief_bytes > chief_bytes + kMayGrowBytes || verdict.server_bytes > server_bytes + kMayGrowBytes)) {
      std::printf("GROWN: by more than %lld bytes\n", Long(kMayGrowBytes));
      return false;
    }
    chief_bytes = verdict.chief_bytes;
    server_bytes = verdict.server_bytes;
  }
  return true;
}

}  // namespace evenkeel::apps
