// One simulation: starts the processes, lets faults happen, starts again what died, and judges the end.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/chief_process.h"
#include "sim/environment.h"
#include "sim/server_process.h"
#include "sim/worker_process.h"

namespace evenkeel::sim {

constexpr Duration kRestartTime = std::chrono::milliseconds(400);

class World {
 public:
  // Requires an experiment made of the scenario; all three outlive the world.
  World(const Scenario& scenario, const Experiment& experiment, Interposer& interposer);
  Verdict Run();

 private:
  void StartChief();
  void StartServer(std::uint32_t index);
  void StartWorker(const std::string& machine);
  void Bury();
  void StartServers();
  void SuperviseListed();
  void StartMissing();
  void Kill(Peer& process, bool seen);
  // world_faults.cc
  // Whether there was anything that the fault could befall.
  bool Apply(const Fault& fault);
  bool Order(const Fault& fault, Body order, std::function<void(const OrderReply&)> accepted);
  bool Scale(const Fault& fault);
  bool CrashChief(const Fault& fault);
  bool CrashAll(const Fault& fault);
  void Supervise();
  void KeepWorkers();
  void OnChiefEnded();
  void StopForGood();
  void Weigh();
  bool GetsOn() const;
  void Count();
  void EndLife(WorkerProcess& worker);
  bool EverybodyEnded() const;
  bool WorkerLives(const std::string& machine) const;
  std::vector<WorkerProcess*> LivingWorkers(const std::string& machine = "") const;
  ServerProcess* LivingServer(const std::string& machine) const;
  std::vector<Peer*> LivingOn(const std::string& machine) const;
  void After(Duration time, std::function<void()> run) {
    scheduler_.At(scheduler_.now() + time, nullptr, std::move(run));
  }
  void Observe(const Peer& from, const Peer& to, SessionId stream, const Message& message);
  std::int64_t AtMs() const;

  const Scenario& scenario_;
  const Experiment& experiment_;
  Scheduler scheduler_;
  Tally tally_;
  JobDisk disk_;
  Invariants invariants_;
  Network network_;
  Environment environment_;
  Rng rng_;

  // Every life, also those that are over: what is under way may still name them.
  std::vector<std::unique_ptr<ChiefProcess>> chiefs_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;  // all that live, and those that died since the last Bury
  std::vector<std::unique_ptr<WorkerProcess>> dead_workers_;
  std::map<const WorkerProcess*, TimePoint> worker_starts_;  // of those whose time is not counted yet
  std::set<std::uint32_t> supervised_;             // servers that are started again; not those that left for good
  std::map<std::uint32_t, TimePoint> down_until_;  // machines of lost servers
  ChiefProcess* chief_ = nullptr;                  // the living one
  bool chief_end_seen_ = false;
  std::uint64_t lives_ = 0;
  TimePoint start_;
  TimePoint deadline_;  // of the job's end
  bool stops_for_good_ = false;
  bool finished_ = false;
  Verdict verdict_;
};

// ddmin (Zeller and Hildebrandt 2002) on the list of faults: fewer for which `breaks` still holds.
std::vector<Fault> Shrink(const Scenario& scenario, int max_runs, const std::function<bool(const Scenario&)>& breaks);

// As Simulate, with something between the network and the real classes.
Verdict SimulateWith(const Scenario& scenario, Interposer& interposer);

}  // namespace evenkeel::sim
