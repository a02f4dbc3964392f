// What happens in a simulation, drawn from its seed.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "evenkeel/core/random.h"
#include "evenkeel/sim/simulation.h"

namespace evenkeel::sim {
namespace {

constexpr std::int64_t kLeaseMs = 1000;
constexpr double kLayoutShare = 0.25;     // of the faults of every second seed
constexpr std::int64_t kMoreServers = 2;  // than the job begins with

std::int64_t Between(Rng& rng, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(rng.Below(static_cast<std::uint64_t>(most - least + 1)));
}
bool Chance(Rng& rng, double p) { return rng.NextDouble() < p; }

class FaultMaker {
 public:
  FaultMaker(Rng& rng, const Scenario& scenario, std::int64_t window_ms)
      : rng_(rng), scenario_(scenario), window_ms_(window_ms), next_new_(scenario.workers) {}

  Fault Make() {
    Fault fault;
    fault.at_ms = Between(rng_, 0, window_ms_);
    if (Chance(rng_, scenario_.seed % 2 == 0 ? kLayoutShare : 0)) return MakeOfServers(fault.at_ms);
    const auto dice = Between(rng_, 0, 999);
    if (dice < 120) {
      fault.kind = Chance(rng_, 0.3) ? FaultKind::kVanish : FaultKind::kKill;
      fault.node = Worker();
      fault.for_ms = Chance(rng_, 0.6) ? Between(rng_, 50, 3 * kLeaseMs) : 0;
    } else if (dice < 270) {
      fault.kind = FaultKind::kPause;
      fault.node = Chance(rng_, 0.75) ? Worker() : Chance(rng_, 0.5) ? "chief" : Server();
      // A server's own lease must hold, mostly.
      const bool long_one = fault.node[0] == 'w' || Chance(rng_, 0.1);
      fault.for_ms = long_one ? Between(rng_, 10, 3 * kLeaseMs) : Between(rng_, 10, kLeaseMs / 2);
      fault.share = fault.node == "chief" && Chance(rng_, 0.5) ? 1 : 0;
    } else if (dice < 340) {
      fault.kind = FaultKind::kLeave;
      fault.node = Worker();
    } else if (dice < 470) {
      fault.kind = FaultKind::kJoin;
      fault.node = Chance(rng_, 0.5) ? Worker() : absl::StrCat("worker:", next_new_++);
    } else if (dice < 690) {
      fault.kind = FaultKind::kBreak;
      Pair(fault);
      fault.share = rng_.NextDouble();
      fault.for_ms = Chance(rng_, 0.5) ? Between(rng_, 0, 20) : Between(rng_, 0, 2 * kLeaseMs);
    } else if (dice < 780) {
      fault.kind = FaultKind::kPartition;
      Pair(fault);
      const bool server = fault.node[0] != 'w' && fault.peer[0] != 'w';
      fault.for_ms = server && Chance(rng_, 0.9) ? Between(rng_, 5, kLeaseMs / 3) : Between(rng_, 5, 2 * kLeaseMs);
    } else if (dice < 850) {
      fault.kind = FaultKind::kSlow;
      Pair(fault);
      fault.for_ms = Between(rng_, 1, 150);
    } else if (dice < 910) {
      fault.kind = FaultKind::kReconnect;
      fault.node = Chance(rng_, 0.6) ? Worker() : Server();
      fault.share = fault.node[0] == 'p' && Chance(rng_, 0.5) ? 1 : 0;
    } else if (dice < 935) {
      fault.kind = FaultKind::kManifestFailure;
      fault.node = "chief";
    } else if (dice < 960) {
      fault.kind = FaultKind::kSnapshotFailure;
      fault.node = Server();
    } else if (dice < 966) {
      fault.kind = Chance(rng_, 0.8) ? FaultKind::kKill : FaultKind::kVanish;
      fault.node = Server();
      if (Chance(rng_, 0.3)) fault.for_ms = Between(rng_, 100, 8 * kLeaseMs);
    } else if (dice < 970) {
      fault.kind = FaultKind::kStop;
      fault.node = "chief";
    } else if (dice < 985) {
      fault.kind = FaultKind::kCrashAll;
      fault.node = "chief";
      fault.share = rng_.NextDouble();
    } else {
      fault.kind = FaultKind::kCrashChief;
      fault.node = "chief";
      fault.share = Chance(rng_, 0.5) ? 0 : rng_.NextDouble();
      fault.for_ms = Between(rng_, 10, 2 * kLeaseMs);
    }
    return fault;
  }

  static bool Moves(const Fault& fault) {
    const bool server = fault.node[0] == 'p';
    return fault.kind == FaultKind::kScale ||
           (server && (fault.kind == FaultKind::kLeave || fault.kind == FaultKind::kDrain));
  }

  // Soon after something that moves stripes.
  Fault MakeInAMove(std::int64_t at_ms) {
    Fault fault;
    fault.at_ms = at_ms + Between(rng_, 0, Chance(rng_, 0.5) ? 40 : 400);
    const auto dice = Between(rng_, 0, 99);
    fault.node = dice < 45 || !Chance(rng_, 0.3) ? AnyServer() : "chief";
    if (dice < 15) {
      fault.kind = FaultKind::kKill;
      fault.for_ms = Chance(rng_, 0.3) ? Between(rng_, 100, 8 * kLeaseMs) : 0;
    } else if (dice < 35) {
      fault.kind = FaultKind::kCrashChief;
      fault.node = "chief";
      fault.share = Chance(rng_, 0.5) ? 0 : rng_.NextDouble();
      fault.for_ms = Between(rng_, 10, kLeaseMs);
    } else if (dice < 40) {
      fault.kind = FaultKind::kCrashAll;
      fault.node = "chief";
      fault.share = rng_.NextDouble();
    } else if (dice < 45) {
      fault.kind = FaultKind::kLeave;
    } else if (dice < 60) {
      fault.kind = FaultKind::kPause;
      fault.for_ms = Between(rng_, 10, Chance(rng_, 0.2) ? 3 * kLeaseMs : kLeaseMs / 2);
      fault.share = fault.node == "chief" && Chance(rng_, 0.5) ? 1 : 0;
    } else {
      fault.kind = dice < 75 ? FaultKind::kBreak : dice < 90 ? FaultKind::kPartition : FaultKind::kSlow;
      fault.peer = fault.node != "chief" && Chance(rng_, 0.4) ? "chief" : AnyServer();
      fault.for_ms = Between(rng_, 5, kLeaseMs / 3);
      if (fault.kind == FaultKind::kBreak) fault.share = rng_.NextDouble();
    }
    return fault;
  }

 private:
  // What changes the layout, and what is in its way.
  Fault MakeOfServers(std::int64_t at_ms) {
    Fault fault;
    fault.at_ms = at_ms;
    const auto dice = Between(rng_, 0, 99);
    if (dice < 15) {
      fault.kind = FaultKind::kLeave;
      fault.node = Server();
    } else if (dice < 30) {
      fault.kind = FaultKind::kDrain;
      fault.node = Chance(rng_, 0.9) ? Server() : Worker();
    } else if (dice < 60) {
      fault.kind = FaultKind::kScale;
      fault.count = Between(rng_, 1, scenario_.servers + kMoreServers);
      fault.for_ms = Chance(rng_, 0.5) ? Between(rng_, 0, 100) : Between(rng_, 0, 2 * kLeaseMs);
    } else if (dice < 75) {
      fault.kind = FaultKind::kJoin;
      fault.node = AnyServer();
    } else if (dice < 80) {
      fault.kind = Chance(rng_, 0.7) ? FaultKind::kKill : FaultKind::kVanish;
      fault.node = AnyServer();
      if (Chance(rng_, 0.5)) fault.for_ms = Between(rng_, 100, 8 * kLeaseMs);
    } else {
      const auto kind = rng_.Below(3);
      fault.kind = kind == 0 ? FaultKind::kBreak : kind == 1 ? FaultKind::kPartition : FaultKind::kSlow;
      fault.node = AnyServer();
      fault.peer = Chance(rng_, 0.7) ? AnyServer() : "chief";
      fault.for_ms = Between(rng_, 5, kLeaseMs / 4);
      if (kind == 0) fault.share = rng_.NextDouble();
    }
    return fault;
  }

  std::string AnyServer() { return absl::StrCat("ps:", rng_.Below(scenario_.servers + kMoreServers)); }
  std::string Worker() { return absl::StrCat("worker:", rng_.Below(next_new_)); }
  std::string Server() { return absl::StrCat("ps:", rng_.Below(scenario_.servers)); }
  void Pair(Fault& fault) {
    switch (rng_.Below(5)) {
      case 0:
      case 1:
        fault.node = Worker(), fault.peer = Server();
        break;
      case 2:
        fault.node = Worker(), fault.peer = "chief";
        break;
      default:
        fault.node = Server(), fault.peer = "chief";
        break;
    }
    if (Chance(rng_, 0.5)) std::swap(fault.node, fault.peer);
  }

  Rng& rng_;
  const Scenario& scenario_;
  const std::int64_t window_ms_;
  std::uint64_t next_new_;
};

}  // namespace

Scenario MakeScenario(std::uint64_t seed) {
  Rng rng(MixKey(seed, HashName("scenario")));
  Scenario scenario;
  scenario.seed = seed;
  scenario.servers = static_cast<std::uint32_t>(Chance(rng, 0.3) ? 1 : Between(rng, 2, 4));
  scenario.workers = static_cast<std::uint32_t>(Chance(rng, 0.7) ? Between(rng, 1, 5) : Between(rng, 6, 12));
  const std::int64_t batch = Between(rng, 3, 48);
  const std::int64_t epochs = Between(rng, 1, 3);
  const std::int64_t commits = Between(rng, 10, 60);
  const int mode = static_cast<int>(rng.Below(3));
  // A commit covers the global batch in bsp, a worker's part of it else.
  const std::int64_t a_commit = mode == 0 ? batch : std::max<std::int64_t>(1, batch / scenario.workers);
  scenario.samples = std::max<std::int64_t>(1, a_commit * commits / epochs + Between(rng, 0, batch));
  const std::int64_t tensors = Between(rng, 1, 3);
  for (std::int64_t i = 0; i < tensors; ++i) scenario.tensor_floats.push_back(Between(rng, 1, 160));
  for (std::uint32_t i = 0; i < scenario.workers; ++i) scenario.sample_us.push_back(Between(rng, 200, 4000));
  scenario.step_us = Between(rng, 20'000, 150'000);
  scenario.delay_us = Between(rng, 50, 5000);
  scenario.slow_stages = Chance(rng, 0.3) ? rng.NextDouble() * 0.3 : 0;

  auto set = [&](std::string text) { scenario.overrides.push_back(std::move(text)); };
  set(absl::StrCat("train.epochs=", epochs));
  set(absl::StrCat("train.global_batch_size=", batch));
  set(absl::StrCat("train.seed=", 1 + rng.Below(1000)));
  set(absl::StrCat("train.bucket_bytes=", 64 * Between(rng, 1, 10)));
  if (Chance(rng, 0.1)) set(absl::StrCat("train.max_commits=", Between(rng, 1, commits)));
  set(absl::StrCat("train.sync.mode=", mode == 0 ? "bsp" : mode == 1 ? "asp" : "ssp"));
  const std::int64_t workers_max = Chance(rng, 0.3) ? Between(rng, 1, scenario.workers) : 32;
  set(absl::StrCat("membership.workers_max=", workers_max));
  set(absl::StrCat("membership.workers_min=",
                   Chance(rng, 0.5) ? 1 : Between(rng, 1, std::min<std::int64_t>(scenario.workers, workers_max))));
  if (mode == 0 && Chance(rng, 0.4) && workers_max > 1) {
    set(absl::StrCat("train.sync.backup_workers=", Between(rng, 1, std::min<std::int64_t>(3, workers_max - 1))));
  }
  if (mode == 2) set(absl::StrCat("train.sync.staleness=", Between(rng, 0, 3)));
  if (Chance(rng, 0.3)) set("train.optimizer.clip_norm=1");
  if (Chance(rng, 0.5)) set("train.optimizer.adam={}");
  if (Chance(rng, 0.8)) set(absl::StrCat("checkpoint.every_commits=", Between(rng, 2, 15)));
  set(absl::StrCat("batching.min_batch_size=", Between(rng, 1, 4)));
  const auto batching = rng.Below(4);
  if (batching == 1) {
    std::vector<std::string> speeds;
    for (std::uint32_t i = 0; i < scenario.workers; ++i) speeds.push_back(absl::StrCat(Between(rng, 1, 5)));
    set("batching.mode=static");
    set(absl::StrCat("batching.speeds=[", absl::StrJoin(speeds, ","), "]"));
  } else {
    set(absl::StrCat("batching.mode=", batching == 0 ? "off" : batching == 2 ? "proportional" : "model"));
  }
  Rng room(seed, HashName("stage_bytes"));
  if (Chance(room, 0.7)) scenario.stage_bytes = 0;
  // Drawn beside all else: scenarios that have none of these are what they were before.
  Rng extra(seed, HashName("batching"));
  if (mode == 0 && Chance(extra, 0.15)) {
    set(absl::StrCat("batching.gradnorm_window=", Between(extra, 1, 6)));
    set(absl::StrCat("batching.global.noise_scale.max=", batch * Between(extra, 1, 6)));
    set("batching.global.noise_scale.min=1");
  }
  if (batching >= 2 && Chance(extra, 0.2)) set(absl::StrCat("batching.evict_slower_than=", Between(extra, 1, 3)));
  if (mode != 0 && batching >= 2 && Chance(extra, 0.3)) set("batching.asp_adjust_strategy=staleness");
  set(absl::StrCat("membership.lease_ms=", kLeaseMs));
  set(absl::StrCat("membership.renew_ms=", Between(rng, 100, kLeaseMs / 3)));
  set(absl::StrCat("membership.join_timeout_ms=", Between(rng, 500, 6000)));
  set("membership.chief_timeout_ms=15000");
  set("membership.ps_timeout_ms=15000");
  set(absl::StrCat("membership.ps_replacement_timeout_ms=", Between(rng, 500, 6000)));
  set("membership.drain_ms=5000");
  set(absl::StrCat("membership.ticket_deadline_floor_ms=", Between(rng, 1000, 4000)));

  const std::int64_t window_ms =
      std::clamp<std::int64_t>(commits * (scenario.step_us + 2000 * batch / scenario.workers) / 700, 2000, 25'000);
  FaultMaker maker(rng, scenario, window_ms);
  const std::int64_t count = Between(rng, 24, 72);
  for (std::int64_t i = 0; i < count; ++i) {
    scenario.faults.push_back(maker.Make());
    if (maker.Moves(scenario.faults.back()) && Chance(rng, 0.5)) {
      scenario.faults.push_back(maker.MakeInAMove(scenario.faults.back().at_ms));
    }
  }
  if (Chance(rng, 0.2)) scenario.work_us = Between(rng, 1000, 20'000);
  scenario.move_us = Chance(rng, 0.5) ? Between(rng, 0, 150'000) : 0;
  std::stable_sort(scenario.faults.begin(), scenario.faults.end(),
                   [](const Fault& a, const Fault& b) { return a.at_ms < b.at_ms; });
  return scenario;
}

}  // namespace evenkeel::sim
