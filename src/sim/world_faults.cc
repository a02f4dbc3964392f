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

bool World::Apply(const Fault& fault) {
  if (finished_) return false;
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
      if (living.empty() || fault.node == "chief") return false;
      if (const std::optional<std::uint32_t> server = ServerNumber(fault.node)) {
        down_until_[*server] = scheduler_.now() + Milliseconds(fault.for_ms);
      }
      for (Peer* process : living) Kill(*process, fault.kind == FaultKind::kKill);
      if (fault.for_ms == 0 || !absl::StartsWith(fault.node, "worker")) return true;
      After(Milliseconds(fault.for_ms), [this, machine = fault.node] {
        if (!finished_ && !WorkerLives(machine)) StartWorker(machine);
      });
      return true;
    }
    case FaultKind::kPause: {
      const std::vector<Peer*> living = LivingOn(fault.node);
      for (Peer* process : living) {
        scheduler_.Pause(*process);
        After(Milliseconds(fault.for_ms), [this, process, tick_first = fault.share >= 0.5] {
          if (tick_first && process == chief_ && process->paused()) chief_->TickNow();
          scheduler_.Continue(*process);
        });
      }
      return !living.empty();
    }
    case FaultKind::kLeave: {
      bool any = false;
      for (WorkerProcess* worker : LivingWorkers(fault.node)) {
        if (worker->paused()) continue;
        any = true;
        ++verdict_.leaves;
        worker->Leave();
      }
      ServerProcess* const server = LivingServer(fault.node);
      if (server == nullptr || server->paused()) return any;
      server->Leave();
      return true;
    }
    case FaultKind::kJoin: {
      if (absl::StartsWith(fault.node, "worker:")) {
        if (LivingWorkers(fault.node).size() >= 2) return false;
        StartWorker(fault.node);
        return true;
      }
      const std::optional<std::uint32_t> server = ServerNumber(fault.node);
      if (!server || LivingServer(fault.node) != nullptr) return false;
      down_until_.erase(*server);
      StartServer(*server);
      return true;
    }
    case FaultKind::kDrain:
      return Order(fault, Drain{fault.node}, [this, name = fault.node](const OrderReply& reply) {
        // Of two processes of one name the one that waits leaves.
        if (!absl::StrContains(reply.message, "had not begun")) invariants_.ToldToLeave(name);
      });
    case FaultKind::kScale:
      return Scale(fault);
    case FaultKind::kBreak:
      return network_.Break(fault.node, fault.peer, true, Milliseconds(fault.for_ms), fault.share);
    case FaultKind::kPartition:
      network_.Partition(fault.node, fault.peer, Milliseconds(fault.for_ms));
      return !LivingOn(fault.node).empty() && !LivingOn(fault.peer).empty();
    case FaultKind::kSlow:
      network_.Slow(fault.node, fault.peer, Milliseconds(fault.for_ms), 10 * Milliseconds(fault.for_ms));
      return !LivingOn(fault.node).empty() && !LivingOn(fault.peer).empty();
    case FaultKind::kReconnect: {
      bool any = false;
      if (ServerProcess* server = LivingServer(fault.node); server != nullptr && !server->paused()) {
        any = true;
        fault.share >= 0.5 ? server->ReconnectInWork() : server->Reconnect();
      }
      for (WorkerProcess* worker : LivingWorkers(fault.node)) {
        if (worker->paused()) continue;
        any = true;
        worker->Reconnect();
      }
      return any;
    }
    case FaultKind::kManifestFailure:
      if (chief_ != nullptr) chief_->FailManifest();
      return chief_ != nullptr;
    case FaultKind::kSnapshotFailure: {
      ServerProcess* const server = LivingServer(fault.node);
      if (server != nullptr) server->FailSnapshot();
      return server != nullptr;
    }
    case FaultKind::kStop: {
      const bool stops = chief_ != nullptr && !chief_->paused() && !chief_->end();
      if (stops) chief_->Stop();
      return stops;
    }
    case FaultKind::kCrashChief:
      return CrashChief(fault);
    case FaultKind::kCrashAll:
      return CrashAll(fault);
  }
  return false;
}

// What an operator asks of the chief; a refusal is an order that did nothing.
bool World::Order(const Fault& fault, Body order, std::function<void(const OrderReply&)> accepted) {
  if (chief_ == nullptr || chief_->end()) return false;
  scheduler_.At(scheduler_.now(), chief_,
                [this, &fault, chief = chief_, order = std::move(order), accepted = std::move(accepted)] {
                  const OrderReply reply = chief->Order(order);
                  reply.accepted ? accepted(reply) : verdict_.idle.push_back(fault);
                });
  return true;
}

// `evenkeel scale --ps N`; where that many are not there, somebody starts the missing ones after a while.
bool World::Scale(const Fault& fault) {
  if (fault.count < 1 || fault.count > kMostServers) return false;
  const auto count = static_cast<std::uint32_t>(fault.count);
  return Order(fault, evenkeel::Scale{count},
               [this, count, start_after = Milliseconds(fault.for_ms)](const OrderReply&) {
                 After(start_after, [this, count] {
                   if (finished_ || chief_ == nullptr || chief_->end()) return;
                   for (std::uint32_t index = 0; index < kMostServers && supervised_.size() < count; ++index) {
                     if (!supervised_.contains(index)) StartServer(index);
                   }
                 });
               });
}

bool World::CrashChief(const Fault& fault) {
  if (chief_ == nullptr) return false;
  Kill(*chief_, fault.share < 0.9);
  if (absl::Status status = disk_.Crash(fault.share, rng_.NextU32()); !status.ok()) {
    invariants_.Break(absl::StrCat("the log cannot be read after a crash: ", status.message()));
  }
  After(Milliseconds(fault.for_ms) + std::chrono::milliseconds(10), [this] {
    if (chief_ == nullptr && !finished_) StartChief();
  });
  return true;
}

bool World::CrashAll(const Fault& fault) {
  if (chief_ == nullptr) return false;
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
  return true;
}

}  // namespace evenkeel::sim
