#include "sim/world.h"

#include <malloc.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel::sim {
namespace {

constexpr Duration kSuperviseEvery = std::chrono::milliseconds(250);
constexpr Duration kGoodbye = std::chrono::milliseconds(100);  // an ended chief's messages go out
// From the last fault to the job's end, and from there to the last process's.
constexpr Duration kEndsWithin = std::chrono::seconds(120);
// A slow one may take so long, as long as it gets on.
constexpr Duration kEndsWithinAtMost = std::chrono::seconds(1200);
constexpr Duration kGetsOnWithin = std::chrono::seconds(60);
constexpr Duration kProcessesEndWithin = std::chrono::seconds(60);

const char* kExperiment = R"({
  "name": "simulation",
  "model": {"layers": [{"dense": {"units": 1}}], "loss": "mse"},
  "input": {"train": {"csv": {"files": ["x.csv"], "label": "y"}}}
})";

// Bytes of the heap that are handed out; 0 where it does not tell.
std::int64_t HeapInUse() {
#ifdef __GLIBC__
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
#else
  return 0;
#endif
}

// What makes one message differ from another of its kind, for the trace.
struct Essence {
  std::uint64_t operator()(const Stage& m) const {
    return m.update.sequence * 31 + static_cast<std::uint64_t>(m.bucket);
  }
  std::uint64_t operator()(const Staged& m) const { return m.update.sequence; }
  std::uint64_t operator()(const Ticket& m) const {
    return MixKey(m.update.sequence, m.positions.empty() ? 0 : static_cast<std::uint64_t>(m.positions[0].begin));
  }
  std::uint64_t operator()(const Bind& m) const { return m.update.sequence; }
  std::uint64_t operator()(const Outcome& m) const { return m.update.sequence * 2 + (m.committed ? 1 : 0); }
  std::uint64_t operator()(const Decision& m) const { return m.hash; }
  std::uint64_t operator()(const Applied& m) const { return m.hash; }
  std::uint64_t operator()(const Seal& m) const { return m.set.value() * 64 + m.attempt; }
  std::uint64_t operator()(const Sealed& m) const { return m.set.value() * 64 + m.attempt; }
  std::uint64_t operator()(const Members& m) const { return m.epoch.value(); }
  template <class Other>
  std::uint64_t operator()(const Other&) const {
    return 0;
  }
};

}  // namespace

World::World(const Scenario& scenario, const Experiment& experiment, Interposer& interposer)
    : scenario_(scenario),
      experiment_(experiment),
      invariants_(experiment, scenario.samples),
      network_(scheduler_, MixKey(scenario.seed, HashName("network")), std::chrono::microseconds(scenario.delay_us),
               [this](const Peer& from, const Peer& to, SessionId stream, const Message& message) {
                 Observe(from, to, stream, message);
               }),
      environment_{scenario, experiment, scheduler_, network_, disk_, invariants_, interposer, tally_},
      rng_(MixKey(scenario.seed, HashName("world"))),
      start_(scheduler_.now()) {
  tally_.workers_min = experiment.membership.workers_min;
}

std::int64_t World::AtMs() const { return (scheduler_.now() - start_) / std::chrono::milliseconds(1); }

void World::Observe(const Peer& from, const Peer& to, SessionId stream, const Message& message) {
  std::uint64_t& hash = verdict_.trace_hash;
  hash = MixKey(hash, static_cast<std::uint64_t>(scheduler_.now().time_since_epoch().count()), stream.value(),
                message.body.index());
  hash = MixKey(hash, from.machine().size() * 256 + static_cast<unsigned char>(from.machine().back()),
                to.machine().size() * 256 + static_cast<unsigned char>(to.machine().back()),
                std::visit(Essence{}, message.body));
}

// --- processes ------------------------------------------------------------------------------------------------------

void World::StartChief() {
  chiefs_.push_back(std::make_unique<ChiefProcess>(environment_, ++lives_));
  chief_ = chiefs_.back().get();
  chief_end_seen_ = false;
  network_.Listen("chief", *chief_);
  ++verdict_.starts;
  chief_->Start();
}

void World::StartServer(std::uint32_t index) {
  supervised_.insert(index);
  servers_.push_back(std::make_unique<ServerProcess>(environment_, index, ++lives_));
  network_.Listen(servers_.back()->machine(), *servers_.back());
  servers_.back()->Start();
}

void World::StartWorker(const std::string& machine) {
  workers_.push_back(std::make_unique<WorkerProcess>(environment_, machine, ++lives_));
  worker_starts_[workers_.back().get()] = scheduler_.now();
  workers_.back()->Start();
}

// What looks for the living looks at few others.
void World::Bury() {
  const auto dead = std::stable_partition(workers_.begin(), workers_.end(), [](const auto& w) { return w->alive(); });
  std::move(dead, workers_.end(), std::back_inserter(dead_workers_));
  workers_.erase(dead, workers_.end());
}

std::vector<WorkerProcess*> World::LivingWorkers(const std::string& machine) const {
  std::vector<WorkerProcess*> living;
  for (const auto& worker : workers_) {
    if (worker->alive() && !worker->ended() && (machine.empty() || worker->machine() == machine)) {
      living.push_back(worker.get());
    }
  }
  return living;
}

bool World::WorkerLives(const std::string& machine) const { return !LivingWorkers(machine).empty(); }

ServerProcess* World::LivingServer(const std::string& machine) const {
  for (const auto& server : servers_) {
    if (server->alive() && !server->ended() && server->machine() == machine) return server.get();
  }
  return nullptr;
}

std::vector<Peer*> World::LivingOn(const std::string& machine) const {
  std::vector<Peer*> living;
  if (machine == "chief" && chief_ != nullptr) living.push_back(chief_);
  if (ServerProcess* server = LivingServer(machine)) living.push_back(server);
  for (WorkerProcess* worker : LivingWorkers(machine)) {
    if (worker->machine() == machine) living.push_back(worker);
  }
  return living;
}

void World::Kill(Peer& process, bool seen) {
  if (auto* worker = dynamic_cast<WorkerProcess*>(&process)) {
    if (!worker->ended()) ++verdict_.kills;
    worker->StopComputing();
    EndLife(*worker);
  }
  scheduler_.Kill(process);
  network_.ProcessDied(process, seen);
  if (&process == chief_) chief_ = nullptr;
}

void World::StartServers() {
  for (std::uint32_t index : supervised_) {
    const auto down = down_until_.find(index);
    if (down != down_until_.end() && scheduler_.now() < down->second) continue;
    if (LivingServer(absl::StrCat("ps:", index)) == nullptr) StartServer(index);
  }
}

// As the cluster file says it.
void World::SuperviseListed() {
  for (std::uint32_t i = 0; i < scenario_.servers; ++i) supervised_.insert(i);
}

// Starts what a job needs and is not there.
void World::StartMissing() {
  StartServers();
  for (std::uint32_t i = 0; i < scenario_.workers; ++i) {
    const std::string machine = absl::StrCat("worker:", i);
    if (!WorkerLives(machine)) StartWorker(machine);
  }
}

// --- the job --------------------------------------------------------------------------------------------------------

// As a supervisor on each machine would: processes that gave up are started again, and enough workers are kept.
void World::Supervise() {
  if (finished_) return;
  for (const auto& server : servers_) {
    if (server->alive() && server->ended() && server->left()) {
      scheduler_.Kill(*server);  // seen to
      if (LivingServer(server->machine()) == nullptr) supervised_.erase(server->index());
    }
  }
  if (chief_ != nullptr && !chief_->end()) StartServers();
  std::vector<std::string> again;
  for (const auto& worker : workers_) {
    if (!worker->alive() || !worker->ended()) continue;
    if (worker->wants_successor() && !WorkerLives(worker->machine())) again.push_back(worker->machine());
    scheduler_.Kill(*worker);  // seen to
    EndLife(*worker);
  }
  Bury();
  std::sort(again.begin(), again.end());
  again.erase(std::unique(again.begin(), again.end()), again.end());
  for (const std::string& machine : again) StartWorker(machine);
  if (scenario_.keeps_workers) KeepWorkers();
  After(kSuperviseEvery, [this] { Supervise(); });
}

void World::KeepWorkers() {
  const auto needed = static_cast<std::size_t>(experiment_.membership.workers_min);
  std::size_t living = 0;
  for (const WorkerProcess* worker : LivingWorkers()) living += worker->paused() ? 0 : 1;
  for (std::uint32_t i = 0; living < needed && i < scenario_.workers; ++i) {
    const std::string machine = absl::StrCat("worker:", i);
    if (WorkerLives(machine)) continue;
    StartWorker(machine);
    ++living;
  }
}

void World::OnChiefEnded() {
  chief_end_seen_ = true;
  const EndAction& end = *chief_->end();
  if (!end.finished_before) verdict_.dropped = end.summary.dropped_updates;
  finished_ = end.finished_before || stops_for_good_ || (end.status.ok() && end.summary.status == "finished");
  if (stops_for_good_ && !end.status.ok()) {
    invariants_.Break(absl::StrCat("the job does not stop when told: ", end.status.message()));
  }
  disk_.Sync();
  After(kGoodbye, [this, chief = chief_] {
    if (chief != chief_) return;
    chief->CloseAll();
    Kill(*chief, true);
    if (finished_) return;
    After(kRestartTime, [this] {
      if (chief_ != nullptr || finished_) return;
      SuperviseListed();  // a job that had ended begins with them
      StartChief();
      StartMissing();
    });
  });
  if (finished_) deadline_ = scheduler_.now() + kProcessesEndWithin;
}

bool World::EverybodyEnded() const {
  auto runs = [](const auto& process) { return process->alive() && !process->ended(); };
  return chief_ == nullptr && std::none_of(servers_.begin(), servers_.end(), runs) &&
         std::none_of(workers_.begin(), workers_.end(), runs);
}

// SIGTERM at the trace's end: a last checkpoint, then all end.
void World::StopForGood() {
  stops_for_good_ = true;
  if (chief_ != nullptr && !chief_->end()) chief_->Stop();
}

void World::EndLife(WorkerProcess& worker) {
  const auto start = worker_starts_.find(&worker);
  if (start == worker_starts_.end()) return;
  verdict_.node_seconds += ToSeconds(scheduler_.now() - start->second);
  worker_starts_.erase(start);
}

void World::Count() {
  tally_.Ends(scheduler_.now());
  for (const auto& worker : workers_) {
    if (!worker->ended()) worker->StopComputing();
    EndLife(*worker);
  }
  verdict_.samples_surviving = invariants_.surviving_samples();
  verdict_.samples_computed = tally_.samples_computed;
  verdict_.computing_seconds = ToSeconds(tally_.computing);
  verdict_.joins = tally_.joins;
  verdict_.members_most = tally_.members_most;
  verdict_.below_min_seconds = ToSeconds(tally_.below);
  verdict_.longest_gap_seconds = ToSeconds(tally_.longest_gap);
  verdict_.most_events_queued = static_cast<std::int64_t>(scheduler_.most_queued());
  verdict_.most_messages_queued = static_cast<std::int64_t>(network_.most_under_way());
}

void World::Weigh() {
  const std::int64_t before = HeapInUse();
  if (chief_ != nullptr) chief_->Destroy();
  const std::int64_t without_chief = HeapInUse();
  for (const auto& server : servers_) server->Destroy();
  const std::int64_t without_servers = HeapInUse();
  if (before <= without_chief) return;  // another allocator is in charge
  verdict_.chief_bytes = before - without_chief;
  verdict_.server_bytes = without_chief - without_servers;
}

// It commits, also what a rollback has taken back; one that goes back again and again is found by the latest end.
bool World::GetsOn() const {
  const TimePoint now = scheduler_.now();
  return !finished_ && !stops_for_good_ && tally_.furthest_at != kNever && now <= tally_.furthest_at + kGetsOnWithin &&
         now <= deadline_ + kEndsWithinAtMost - kEndsWithin;
}

Verdict World::Run() {
  std::int64_t last_ms = 0;
  for (const Fault& fault : scenario_.faults) {
    // A slow link stays so for ten times its delay.
    last_ms = std::max(last_ms, fault.at_ms + fault.for_ms * (fault.kind == FaultKind::kSlow ? 10 : 1));
    scheduler_.At(start_ + Milliseconds(fault.at_ms), nullptr, [this, &fault] {
      if (!Apply(fault)) verdict_.idle.push_back(fault);
    });
  }
  if (scenario_.ends_at_ms > 0) {
    last_ms = std::max(last_ms, scenario_.ends_at_ms);
    scheduler_.At(start_ + Milliseconds(scenario_.ends_at_ms), nullptr, [this] { StopForGood(); });
  }
  deadline_ = start_ + Milliseconds(last_ms) + kEndsWithin;
  SuperviseListed();
  StartChief();
  StartMissing();
  Supervise();
  while (!invariants_.broken() && !scheduler_.idle()) {
    scheduler_.RunNext();
    if (chief_ != nullptr && chief_->end() && !chief_end_seen_) OnChiefEnded();
    if (finished_ && chief_ == nullptr && EverybodyEnded()) break;
    if (scenario_.halts_at_commits > 0 && invariants_.commits() >= scenario_.halts_at_commits) break;
    if ((scheduler_.now() <= deadline_ || GetsOn()) && scheduler_.events() < scenario_.max_events) continue;
    if (finished_) {
      invariants_.Break("the job has finished, but a process still runs");
    } else {
      invariants_.Break(absl::StrCat("the job hangs: ", chief_ == nullptr ? "no chief" : chief_->StatusJson()));
    }
  }
  for (const Fault& fault : scenario_.faults) {
    if (start_ + Milliseconds(fault.at_ms) > scheduler_.now()) verdict_.idle.push_back(fault);
  }
  Count();
  if (scenario_.halts_at_commits > 0) Weigh();
  verdict_.broken = invariants_.what();
  verdict_.at_ms = AtMs();
  verdict_.events = scheduler_.events();
  verdict_.commits = invariants_.commits();
  verdict_.fenced = invariants_.fenced();
  verdict_.moves = invariants_.moves();
  return verdict_;
}

Verdict SimulateWith(const Scenario& scenario, Interposer& interposer) {
  Verdict failed;
  const auto experiment = ParseExperiment(kExperiment, "the simulation's experiment", scenario.overrides);
  if (!experiment.ok()) {
    failed.broken = absl::StrCat("not a scenario: ", experiment.status().message());
    failed.invalid = experiment.status();
    return failed;
  }
  // An index out of bounds in the classes under test is a broken invariant as well.
  try {
    return World(scenario, *experiment, interposer).Run();
  } catch (const std::exception& error) {
    failed.broken = absl::StrCat("an exception: ", error.what());
    return failed;
  }
}

Verdict Simulate(const Scenario& scenario) {
  Interposer nothing;
  return SimulateWith(scenario, nothing);
}

std::vector<Fault> ShrinkFaults(const Scenario& scenario, int max_runs) {
  return Shrink(scenario, max_runs, [](const Scenario& smaller) { return !Simulate(smaller).broken.empty(); });
}

std::vector<Fault> Shrink(const Scenario& scenario, int max_runs, const std::function<bool(const Scenario&)>& breaks) {
  Scenario smaller = scenario;
  std::size_t pieces = 2;
  while (smaller.faults.size() >= 2 && max_runs > 0) {
    const std::size_t size = smaller.faults.size();
    const std::size_t chunk = (size + pieces - 1) / pieces;
    bool reduced = false;
    for (std::size_t begin = 0; begin < size && max_runs > 0; begin += chunk, --max_runs) {
      Scenario without = smaller;
      const auto first = without.faults.begin() + static_cast<std::ptrdiff_t>(begin);
      without.faults.erase(first, first + static_cast<std::ptrdiff_t>(std::min(chunk, size - begin)));
      if (!breaks(without)) continue;
      smaller = std::move(without);
      pieces = std::max<std::size_t>(pieces - 1, 2);
      reduced = true;
      --max_runs;
      break;
    }
    if (reduced) continue;
    if (pieces >= size) break;
    pieces = std::min(pieces * 2, size);
  }
  return smaller.faults;
}

}  // namespace evenkeel::sim
