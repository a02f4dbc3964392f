// A place between the network and the real classes, for tests that plant bugs there. This one changes nothing.
#pragma once

#include <utility>
#include <vector>

#include "evenkeel/chief/chief.h"
#include "evenkeel/protocol/messages.h"
#include "sim/network.h"

namespace evenkeel::sim {

class Interposer {
 public:
  virtual ~Interposer() = default;
  // What the chief gets in place of the one message in the list.
  virtual void BeforeChief(std::vector<std::pair<SessionId, Message>>& messages) { (void)messages; }
  // What is done in place of what the chief decided.
  virtual void AfterChief(ChiefActions& actions) { (void)actions; }
  // A message of the chief's to a server.
  virtual void BeforeServer(std::uint32_t server, Message& message) { (void)server, (void)message; }
  // A decision has reached a server that published it long ago: is it applied once more?
  virtual bool AppliesAgain(std::uint32_t server, const Decision& decision) {
    (void)server, (void)decision;
    return false;
  }
  // A server that prepares a place fetches from this one: is it given what was there before the newest decision?
  virtual bool GivesFormer(std::uint32_t server) {
    (void)server;
    return false;
  }
};

}  // namespace evenkeel::sim
