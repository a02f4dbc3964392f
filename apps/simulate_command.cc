#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "commands.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/sim/simulation.h"
#include "options.h"
#include "simulate_spot.h"

namespace evenkeel::apps {
namespace {

struct Options {
  std::int64_t seeds = 1;
  std::uint64_t first_seed = 1;
  std::uint64_t seed = 0;  // 0: not this one alone
  std::string faults;
  int shrink_runs = 200;
  bool verbose = false;
  SpotCommand spot;
  bool soak = false;
  sim::SoakOptions soak_options;
};

// A broken invariant inside a role aborts: the seed must be known then too.
volatile std::sig_atomic_t running_seed_high = 0, running_seed_low = 0;

void SayRunningSeed(int) {
  char text[64] = "evenkeel simulate: aborted in seed ";
  std::size_t at = 35;
  char digits[20];
  int count = 0;
  std::uint64_t seed = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(running_seed_high)) << 32) |
                       static_cast<std::uint32_t>(running_seed_low);
  do {
    digits[count++] = static_cast<char>('0' + seed % 10);
    seed /= 10;
  } while (seed > 0);
  while (count > 0) text[at++] = digits[--count];
  text[at++] = '\n';
  if (write(STDERR_FILENO, text, at) < 0) return;
}

void Print(std::uint64_t seed, const sim::Verdict& verdict) {
  std::printf("seed %llu: trace %016llx, %lld ms, %lld events, %lld commits, %lld starts, %lld moves%s%s\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(verdict.trace_hash),
              static_cast<long long>(verdict.at_ms), static_cast<long long>(verdict.events),
              static_cast<long long>(verdict.commits), static_cast<long long>(verdict.starts),
              static_cast<long long>(verdict.moves),
              verdict.broken.empty() ? "" : ": BROKEN: ", verdict.broken.c_str());
  std::fflush(stdout);
}

// One line with what broke and how to see it again, then the events that are enough for it.
void PrintFailure(const sim::Scenario& scenario, const sim::Verdict& verdict, const Options& options) {
  std::printf("seed %llu: %s; replay: evenkeel simulate --seed %llu%s%s\n",
              static_cast<unsigned long long>(scenario.seed), verdict.broken.c_str(),
              static_cast<unsigned long long>(scenario.seed), options.faults.empty() ? "" : " --faults ",
              options.faults.c_str());
  std::fflush(stdout);
  if (options.shrink_runs == 0) return;
  const std::vector<sim::Fault> faults = sim::ShrinkFaults(scenario, options.shrink_runs);
  std::printf("%zu of %zu faults are enough (a file of them goes with --faults FILE --seed %llu):\n%s", faults.size(),
              scenario.faults.size(), static_cast<unsigned long long>(scenario.seed),
              sim::FaultsToJson(faults).c_str());
  std::fflush(stdout);
}

absl::StatusOr<bool> Run(const Options& options) {
  std::optional<std::vector<sim::Fault>> faults;
  if (!options.faults.empty()) {
    EK_ASSIGN_OR_RETURN(const std::string text, Storage::Posix().Read(options.faults, 64 << 20));
    EK_ASSIGN_OR_RETURN(faults, sim::FaultsFromJson(text, options.faults));
  }
  const bool one = options.seed != 0;
  const std::uint64_t first = one ? options.seed : options.first_seed;
  const std::uint64_t count = one ? 1 : static_cast<std::uint64_t>(options.seeds);
  std::signal(SIGABRT, SayRunningSeed);
  std::int64_t failures = 0, commits = 0, starts = 0, events = 0, moves = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    running_seed_high = static_cast<std::sig_atomic_t>(seed >> 32);
    running_seed_low = static_cast<std::sig_atomic_t>(seed & 0xffffffff);
    sim::Scenario scenario = sim::MakeScenario(seed);
    if (faults) scenario.faults = *faults;
    const sim::Verdict verdict = sim::Simulate(scenario);
    commits += verdict.commits;
    starts += verdict.starts;
    moves += verdict.moves;
    events += verdict.events;
    if (options.verbose) Print(seed, verdict);
    if (faults) {
      for (const sim::Fault& idle : verdict.idle) std::printf("did nothing: %s\n", sim::ToString(idle).c_str());
    }
    if (verdict.broken.empty()) continue;
    ++failures;
    PrintFailure(scenario, verdict, options);
  }
  std::signal(SIGABRT, SIG_DFL);
  std::printf(
      "%llu seeds, %lld events, %lld commits, %lld starts of the chief, %lld moves of stripes: "
      "%lld broken\n",
      static_cast<unsigned long long>(count), static_cast<long long>(events), static_cast<long long>(commits),
      static_cast<long long>(starts), static_cast<long long>(moves), static_cast<long long>(failures));
  return failures == 0;
}

absl::StatusOr<bool> RunAny(const Options& options) {
  const std::uint64_t seed = options.seed == 0 ? 1 : options.seed;
  if (options.soak) {
    sim::SoakOptions soak = options.soak_options;
    soak.seed = seed;
    soak.mode = options.spot.options.mode;
    return SimulateSoak(soak);
  }
  if (options.spot.files.empty()) return Run(options);
  SpotCommand spot = options.spot;
  spot.options.seed = seed;
  return SimulateSpot(spot);
}

int Simulate(const Options& options) {
  const absl::StatusOr<bool> result = RunAny(options);
  if (result.ok()) return static_cast<int>(*result ? ExitCode::kOk : ExitCode::kFailed);
  std::fprintf(stderr, "evenkeel simulate: %s\n", std::string(result.status().message()).c_str());
  return static_cast<int>(ExitCodeFor(result.status()));
}

void AddTraceOptions(CLI::App& command, Options& options) {
  sim::SpotOptions& spot = options.spot.options;
  auto* trace =
      command
          .add_option("--availability", options.spot.files,
                      "A trace of a spot market drives joins and ends of workers, with no other fault; the job "
                      "is stopped at its end. Several are overlaid. Goodput is the samples of surviving commits "
                      "over all samples whose gradient was computed, used or not; of an update that its worker's "
                      "end cuts off, the share of its computing time that had passed counts")
          ->type_name("FILE")
          ->check(CLI::ExistingFile);
  for (const char* other : {"--faults", "--seeds", "--first-seed"}) trace->excludes(command.get_option(other));
  command
      .add_option("--nodes", spot.nodes,
                  "Overlay copies, begun at other moments and renamed, up to so many nodes at once")
      ->needs(trace)
      ->check(CLI::Range(1, 50'000));
  command.add_option("--time-scale", spot.time_scale, "The trace runs so many times faster")
      ->needs(trace)
      ->capture_default_str()
      ->check(Within(1e-3, 1e6));
  command
      .add_option(
          "--step-seconds", spot.step_seconds,
          "A step while the most nodes are there: a tenth fixed, nine for 32 samples a node. The global batch is "
          "the same with fewer, so their steps take longer")
      ->needs(trace)
      ->capture_default_str()
      ->check(Within(1e-3, 3600.0));
  command
      .add_option("--removal", options.spot.removal,
                  "How a machine goes: vanish (only its lease tells), kill (its connections break at once), or leave "
                  "(SIGTERM, an orderly leave)")
      ->needs(trace)
      ->capture_default_str()
      ->check(CLI::IsMember({"vanish", "kill", "leave"}));
  command.add_option("--servers", spot.servers, "Parameter servers")
      ->needs(trace)
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command
      .add_option(
          "--set", spot.overrides,
          "Overrides a field of the simulated experiment, as membership.lease_ms=5000; may be given several times")
      ->needs(trace)
      ->type_name("FIELD=VALUE")
      ->allow_extra_args(false);
  auto* soak =
      command.add_flag("--soak", options.soak,
                       "Very many commits while machines come and go; the memory of chief and servers must not "
                       "grow from a quarter of the commits to all of them");
  soak->excludes(trace);
  for (const char* other : {"--faults", "--seeds", "--first-seed"}) soak->excludes(command.get_option(other));
  command.add_option("--commits", options.soak_options.commits, "Of the soak")
      ->needs(soak)
      ->capture_default_str()
      ->check(CLI::Range(20'000, 100'000'000));
  command.add_option("--commits-a-join", options.soak_options.commits_a_join, "Of the soak, about")
      ->needs(soak)
      ->capture_default_str()
      ->check(CLI::Range(10, 1'000'000));
  command
      .add_option("--new-names", options.soak_options.new_names,
                  "Of the soak: each machine has a name of its own; else sixteen come back")
      ->needs(soak)
      ->capture_default_str();
  command.add_option("--mode", spot.mode, "Of --availability and --soak")
      ->capture_default_str()
      ->check(CLI::IsMember({"bsp", "asp", "ssp"}));
}

}  // namespace

void AddSimulateCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("simulate",
                                         "Runs whole jobs in virtual time, with faults drawn from a seed or a spot "
                                         "market's trace, and checks what must hold");
  command->add_option("--seeds", options->seeds, "How many")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000'000));
  auto* first_seed = command->add_option("--first-seed", options->first_seed, "The first one")->capture_default_str();
  const CLI::Validator is_seed(
      [](std::string& text) {
        std::int64_t value = 0;
        const bool fits = absl::SimpleAtoi(text, &value) && value > 0;
        return fits ? std::string() : absl::StrCat("a seed is a whole number from 1 to 2^63 - 1, not ", text);
      },
      "SEED");
  first_seed->check(is_seed);
  auto* seed = command->add_option("--seed", options->seed, "This one alone")->check(is_seed);
  for (const char* other : {"--seeds", "--first-seed"}) seed->excludes(command->get_option(other));
  command
      ->add_option("--faults", options->faults,
                   "These faults, a JSON list, in place of the seed's; those that did nothing are named")
      ->needs(seed)
      ->check(CLI::ExistingFile);
  command->add_option("--shrink-runs", options->shrink_runs, "Simulations to find fewer faults; 0: none")
      ->capture_default_str()
      ->check(CLI::Range(0, 100'000));
  command->add_flag("--verbose", options->verbose, "A line a seed, with its trace's hash");
  AddTraceOptions(*command, *options);
  command->callback([&chosen, options, command] {
    if (command->count("--mode") > 0 && !options->soak && options->spot.files.empty()) {
      throw CLI::RequiresError("--mode", "--availability or --soak: a seed draws its own");
    }
    chosen = [options] { return Simulate(*options); };
  });
}

}  // namespace evenkeel::apps
