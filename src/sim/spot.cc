#include "evenkeel/sim/spot.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/random.h"

namespace evenkeel::sim {
namespace {

using Events = std::vector<AvailabilityEvent>;

// ImageNet's: an epoch of so many is long beside a step, and short beside a trace.
constexpr std::int64_t kSamples = 1'281'167;
constexpr std::int64_t kWithoutEnd = 1'000'000;  // epochs
constexpr std::int64_t kMaxCopies = 10'000;

// The trace as somebody saw it who came at `shift`, and saw it begin anew after its end.
Events Rotate(const Events& trace, std::int64_t shift) {
  const std::int64_t length = trace.back().at_ms;
  std::set<std::string> at_shift, at_start;
  Events rotated, second_half;
  for (const AvailabilityEvent& event : trace) {
    if (event.at_ms == 0 && event.add) at_start.insert(event.node);
    if (event.at_ms >= shift) continue;
    if (event.add) {
      at_shift.insert(event.node);
    } else {
      at_shift.erase(event.node);
    }
    second_half.push_back({event.at_ms + length - shift, event.add, event.node});
  }
  for (const std::string& node : at_shift) rotated.push_back({0, true, node});
  std::set<std::string> at_end = at_shift;
  for (const AvailabilityEvent& event : trace) {
    if (event.at_ms < shift) continue;
    if (event.add) {
      at_end.insert(event.node);
    } else {
      at_end.erase(event.node);
    }
    rotated.push_back({event.at_ms - shift, event.add, event.node});
  }
  for (const std::string& node : at_end) {
    if (!at_start.contains(node)) rotated.push_back({length - shift, false, node});
  }
  rotated.insert(rotated.end(), second_half.begin(), second_half.end());
  return rotated;
}

// A node that is there is not added, one that is away is not removed.
void DropRepeats(Events& events) {
  std::set<std::string> live;
  std::erase_if(events, [&](const AvailabilityEvent& event) {
    return event.add ? !live.insert(event.node).second : live.erase(event.node) == 0;
  });
}

FaultKind KindOf(Removal removal) {
  switch (removal) {
    case Removal::kVanish:
      return FaultKind::kVanish;
    case Removal::kKill:
      return FaultKind::kKill;
    case Removal::kLeave:
      return FaultKind::kLeave;
  }
  return FaultKind::kVanish;
}

}  // namespace

std::vector<AvailabilityEvent> OverlayTraces(const std::vector<Events>& traces, std::int64_t nodes,
                                             std::uint64_t seed) {
  Rng rng(MixKey(seed, HashName("overlay")));
  Events all;
  for (std::int64_t copy = 0; copy < kMaxCopies; ++copy) {
    const auto index = static_cast<std::size_t>(copy);
    if (index >= traces.size() && static_cast<std::int64_t>(MostAlive(all)) >= nodes) break;
    const Events& trace = traces[index % traces.size()];
    const std::int64_t length = trace.back().at_ms;
    const bool shifted = index >= traces.size() && length > 0;
    Events one =
        shifted ? Rotate(trace, static_cast<std::int64_t>(rng.Below(static_cast<std::uint64_t>(length)))) : trace;
    for (AvailabilityEvent& event : one) event.node = absl::StrCat(copy, "/", event.node);
    DropRepeats(one);
    const auto middle = static_cast<std::ptrdiff_t>(all.size());
    all.insert(all.end(), one.begin(), one.end());
    std::inplace_merge(all.begin(), all.begin() + middle, all.end(),
                       [](const auto& a, const auto& b) { return a.at_ms < b.at_ms; });
  }
  return nodes > 0 ? CapAvailability(all, static_cast<std::size_t>(nodes)) : all;
}

absl::StatusOr<Scenario> MakeSpotScenario(const std::vector<Events>& traces, const SpotOptions& options) {
  if (traces.empty() || std::any_of(traces.begin(), traces.end(), [](const Events& t) { return t.empty(); })) {
    return absl::InvalidArgumentError("a trace has no events; each needs one at least");
  }
  const Events events = OverlayTraces(traces, options.nodes, options.seed);
  const auto most = static_cast<std::int64_t>(MostAlive(events));
  if (most < 1) return absl::InvalidArgumentError("no node is ever there");
  if (options.nodes > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.nodes, " nodes are asked for; ", kMaxCopies, " copies have ", most));
  }
  Scenario scenario;
  scenario.seed = options.seed;
  scenario.servers = options.servers;
  scenario.workers = 0;  // none is listed: each comes with nothing but the chief's address
  scenario.keeps_workers = false;
  scenario.samples = kSamples;
  scenario.tensor_floats = {1024};
  const double step_us = options.step_seconds * 1e6;
  scenario.sample_us = {std::max<std::int64_t>(1, static_cast<std::int64_t>(0.9 * step_us / kSamplesANode))};
  scenario.step_us = static_cast<std::int64_t>(0.1 * step_us);
  scenario.delay_us = 500;
  scenario.max_events = INT64_MAX;
  std::map<std::string, std::int64_t> numbers;
  for (const AvailabilityEvent& event : events) {
    const std::int64_t number =
        numbers.try_emplace(event.node, static_cast<std::int64_t>(numbers.size())).first->second;
    Fault fault;
    fault.at_ms = static_cast<std::int64_t>(static_cast<double>(event.at_ms) / options.time_scale);
    fault.kind = event.add ? FaultKind::kJoin : KindOf(options.removal);
    fault.node = absl::StrCat("worker:", number);
    scenario.faults.push_back(std::move(fault));
  }
  scenario.ends_at_ms = std::max<std::int64_t>(1, scenario.faults.back().at_ms);
  auto set = [&](std::string text) { scenario.overrides.push_back(std::move(text)); };
  set(absl::StrCat("train.epochs=", kWithoutEnd));
  set(absl::StrCat("train.global_batch_size=", kSamplesANode * most));
  set(absl::StrCat("train.sync.mode=", options.mode));
  set(absl::StrCat("membership.workers_max=", 2 * most));  // the dead count until their leases end
  set(absl::StrCat("membership.workers_min=", std::max<std::int64_t>(1, most / 4)));
  set("membership.join_timeout_ms=3600000");
  // A step takes four times as long with the fewest workers, and nobody knows yet how long a newcomer's takes.
  set(absl::StrCat("membership.ticket_deadline_floor_ms=",
                   std::max<std::int64_t>(30'000, static_cast<std::int64_t>(8000 * options.step_seconds))));
  set("checkpoint.every_seconds=600");
  for (const std::string& text : options.overrides) set(text);
  return scenario;
}

Scenario MakeSoakScenario(const SoakOptions& options) {
  constexpr std::int64_t kCommitMs = 34;  // about
  constexpr std::int64_t kFirstGuest = 100;
  Scenario scenario;
  scenario.seed = options.seed;
  scenario.servers = 2;
  scenario.workers = 6;
  scenario.samples = 60'000;
  scenario.tensor_floats = {512};
  scenario.sample_us = {400};
  scenario.step_us = 20'000;
  scenario.delay_us = 300;
  scenario.max_events = INT64_MAX;
  scenario.halts_at_commits = options.commits;
  const std::int64_t pause_ms = options.commits_a_join * kCommitMs;
  const std::int64_t guests = 2 * (options.commits / options.commits_a_join + 1);
  for (std::int64_t guest = 0; guest < guests; ++guest) {
    const std::int64_t number = kFirstGuest + (options.new_names ? guest : guest % 16);
    Fault fault;
    fault.node = absl::StrCat("worker:", number);
    fault.at_ms = 1000 + guest * pause_ms;
    fault.kind = FaultKind::kJoin;
    scenario.faults.push_back(fault);
    fault.at_ms += pause_ms / 2;
    fault.kind = guest % 4 == 3 ? FaultKind::kVanish : guest % 2 == 1 ? FaultKind::kKill : FaultKind::kLeave;
    scenario.faults.push_back(fault);
  }
  auto set = [&](std::string text) { scenario.overrides.push_back(std::move(text)); };
  set(absl::StrCat("train.epochs=", kWithoutEnd));
  set("train.global_batch_size=96");
  set(absl::StrCat("train.sync.mode=", options.mode));
  set("checkpoint.every_commits=500");
  set("membership.lease_ms=400");
  set("membership.renew_ms=100");
  return scenario;
}

}  // namespace evenkeel::sim
