// The transport over gRPC, with what its listeners say of other ways.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "evenkeel/protocol/ways.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {

// What a listener offers to who knows the ways asked for. Called on gRPC's threads.
using OfferWays = std::function<std::vector<Way>(const std::vector<Way>& asked)>;

class OfferingTransport : public Transport {
 public:
  virtual absl::StatusOr<std::unique_ptr<Listener>> ListenOffering(Service service, const std::string& address,
                                                                   Acceptor acceptor, OfferWays offer) = 0;
  // Blocks until the listener at `address` has answered. One that knows no such question offers nothing.
  // Errors: kUnavailable.
  virtual absl::StatusOr<std::vector<Way>> AskForWays(Service service, const std::string& address,
                                                      const std::vector<Way>& ways, TimePoint deadline) = 0;
  // Questions end at once, also those to come.
  virtual void EndQuestions() = 0;
};

std::unique_ptr<OfferingTransport> MakeOfferingTransport(const GrpcOptions& options);

}  // namespace evenkeel
