// Bugs to be caught: each stands between the network and a real class, and makes the pair of them behave as if the
// class had the bug.
#pragma once

#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "evenkeel/core/ranges.h"
#include "sim/interposer.h"

namespace evenkeel::sim {

// A server applies a decision again when the chief, which missed the answer, sends it again.
class AppliesTwice final : public Interposer {
 public:
  bool AppliesAgain(std::uint32_t, const Decision&) override { return true; }
};

// A chief forgets to return what a dropped update covered: nobody is ever asked for it again.
class ForgetsRange final : public Interposer {
 public:
  void BeforeChief(std::vector<std::pair<SessionId, Message>>& messages) override;
  void AfterChief(ChiefActions& actions) override;

 private:
  RangeList WithoutForgotten(Epoch epoch, const RangeList& positions) const;

  std::map<UpdateId, std::pair<Epoch, RangeList>> tickets_;
  std::map<UpdateId, std::int64_t> missing_;  // samples that the ticket lacks and the chief believes in
  std::map<Epoch, std::set<std::int64_t>> forgotten_;
};

// Servers acknowledge a fence and go on taking what the fenced incarnation stages.
class AcceptsStale final : public Interposer {
 public:
  void BeforeServer(std::uint32_t, Message& message) override {
    if (auto* members = std::get_if<Members>(&message.body)) members->fenced.clear();
  }
};

// A server gives another one, which prepares a place, the parameters from before its newest decision.
class GivesFormerVersion final : public Interposer {
 public:
  bool GivesFormer(std::uint32_t) override { return true; }
};

// A chief takes a server that could not fill its place for one that is ready.
class TakesFailedForReady final : public Interposer {
 public:
  void BeforeChief(std::vector<std::pair<SessionId, Message>>& messages) override {
    if (auto* filled = std::get_if<Filled>(&messages.front().second.body)) filled->error.clear();
  }
};

// A chief counts the servers' reports, and not who sent them: one that comes again counts for another server.
class CountsArrivals final : public Interposer {
 public:
  void BeforeChief(std::vector<std::pair<SessionId, Message>>& messages) override;

 private:
  struct Server {
    SessionId session;
    Envelope envelope;
    std::set<std::tuple<int, std::uint64_t, std::uint64_t, std::uint64_t>> reports;
  };
  std::map<std::string, Server> servers_;
};

}  // namespace evenkeel::sim
