// What befalls a simulated job.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "sim/world.h"

namespace evenkeel::sim {
namespace {

// "ps:3" -> 3; nullopt: no server's name.
std::optional<std::uint32_t> ServerNumber(const std::string& node) {
  std::uint32_t number = 0;
  if (!absl::StartsWith(node, "ps:") || !absl::SimpleAtoi(node.substr(3), &number)) return std::nullopt;
  return number < kMostServers ? std::optional(number) : std::nullopt;
}

}  // namespace

void World::Apply(const Fault& fault) {
  if (finished_) return;
  switch (fault.kind) {
    case FaultKind::kKill:
    case FaultKind::kVanish: {
      if (!scenario_.keeps_workers) {
        // The machine goes: a process on it that gave up has no successor.
        for (const auto& worker : workers_) {
          if (worker->machine() == fault.node && worker->ended() && worker->alive()) Kill(*worker, true);
        }
      }
      const std::vector<Peer*> living = LivingOn(fault.node);
      if (living.empty() || fault.node == "chief") return;
      if (const std::optional<std::uint32_t> server = ServerNumber(fault.node)) {
        down_until_[*server] = scheduler_.now() + Milliseconds(fault.for_ms);
      }
      for (Peer* process : living) Kill(*process, fault.kind == FaultKind::kKill);
      if (fault.for_ms == 0 || !absl::StartsWith(fault.node, "worker")) return;
      return After(Milliseconds(fault.for_ms), [this, machine = fault.node] {
        if (!finished_ && !WorkerLives(machine)) StartWorker(machine);
      });
    }
    case FaultKind::kPause:
      for (Peer* process : LivingOn(fault.node)) {
        scheduler_.Pause(*process);
        After(Milliseconds(fault.for_ms), [this, process, tick_first = fault.share >= 0.5] {
          if (tick_first && process == chief_ && process->paused()) chief_->TickNow();
          scheduler_.Continue(*process);
        });
      }
      return;
    case FaultKind::kLeave:
      for (WorkerProcess* worker : LivingWorkers(fault.node)) {
        if (worker->paused()) continue;
        ++verdict_.leaves;
        worker->Leave();
      }
      if (ServerProcess* server = LivingServer(fault.node); server != nullptr && !server->paused()) server->Leave();
      return;
    case FaultKind::kJoin:
      if (absl::StartsWith(fault.node, "worker:") && LivingWorkers(fault.node).size() < 2) StartWorker(fault.node);
      if (const auto server = ServerNumber(fault.node); server && LivingServer(fault.node) == nullptr) {
        down_until_.erase(*server);
        StartServer(*server);
      }
      return;
    case FaultKind::kDrain:
      if (chief_ != nullptr && !chief_->end()) {
        scheduler_.At(scheduler_.now(), chief_, [this, chief = chief_, name = fault.node] {
          const OrderReply reply = chief->Order(Drain{name});
          // Of two processes of one name the one that waits leaves.
          if (reply.accepted && !absl::StrContains(reply.message, "had not begun")) invariants_.Drained(name);
        });
      }
      return;
    case FaultKind::kScale:
      return Scale(fault);
    case FaultKind::kBreak: {
      return network_.Break(fault.node, fault.peer, true, Milliseconds(fault.for_ms), fault.share);
    }
    case FaultKind::kPartition:
      return network_.Partition(fault.node, fault.peer, Milliseconds(fault.for_ms));
    case FaultKind::kSlow:
      return network_.Slow(fault.node, fault.peer, Milliseconds(fault.for_ms), 10 * Milliseconds(fault.for_ms));
    case FaultKind::kReconnect:
      if (ServerProcess* server = LivingServer(fault.node); server != nullptr && !server->paused()) {
        fault.share >= 0.5 ? server->ReconnectInWork() : server->Reconnect();
      }
      for (WorkerProcess* worker : LivingWorkers(fault.node)) {
        if (!worker->paused()) worker->Reconnect();
      }
      return;
    case FaultKind::kManifestFailure:
      if (chief_ != nullptr) chief_->FailManifest();
      return;
    case FaultKind::kSnapshotFailure:
      if (ServerProcess* server = LivingServer(fault.node)) server->FailSnapshot();
      return;
    case FaultKind::kStop:
      if (chief_ != nullptr && !chief_->paused() && !chief_->end()) chief_->Stop();
      return;
    case FaultKind::kCrashChief:
      return CrashChief(fault);
    case FaultKind::kCrashAll:
      return CrashAll(fault);
  }
}

// `evenkeel scale --ps N`; where that many are not there, somebody starts the missing ones after a while.
void World::Scale(const Fault& fault) {
  if (chief_ == nullptr || chief_->end() || fault.count < 1 || fault.count > kMostServers) return;
  const auto count = static_cast<std::uint32_t>(fault.count);
  scheduler_.At(scheduler_.now(), chief_, [this, chief = chief_, count, start_after = Milliseconds(fault.for_ms)] {
    if (!chief->Order(evenkeel::Scale{count}).accepted) return;
    After(start_after, [this, count] {
      if (finished_ || chief_ == nullptr || chief_->end()) return;
      for (std::uint32_t index = 0; index < kMostServers && supervised_.size() < count; ++index) {
        if (!supervised_.contains(index)) StartServer(index);
      }
    });
  });
}

void World::CrashChief(const Fault& fault) {
  if (chief_ == nullptr) return;
  Kill(*chief_, fault.share < 0.9);
  if (absl::Status status = disk_.Crash(fault.share, rng_.NextU32()); !status.ok()) {
    invariants_.Break(absl::StrCat("the log cannot be read after a crash: ", status.message()));
  }
  After(Milliseconds(fault.for_ms) + std::chrono::milliseconds(10), [this] {
    if (chief_ == nullptr && !finished_) StartChief();
  });
}

void World::CrashAll(const Fault& fault) {
  if (chief_ == nullptr) return;
  Kill(*chief_, true);
  for (const auto& server : servers_) {
    if (server->alive()) Kill(*server, true);
  }
  for (const auto& worker : workers_) {
    if (worker->alive()) Kill(*worker, true);
  }
  if (absl::Status status = disk_.Crash(fault.share, rng_.NextU32()); !status.ok()) {
    invariants_.Break(absl::StrCat("the log cannot be read after a crash: ", status.message()));
  }
  After(kRestartTime, [this] {
    if (chief_ != nullptr || finished_) return;
    StartChief();
    StartMissing();
  });
}

}  // namespace evenkeel::sim
