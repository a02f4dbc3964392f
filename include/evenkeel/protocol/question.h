// Asks the chief one thing without joining its job.
//
// Threading: none of its own; blocks the caller.
// Errors:    kPermissionDenied with the chief's words where it refused; kDeadlineExceeded names the address;
//            kCancelled once `stop` is requested.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/stop.h"
#include "evenkeel/protocol/messages.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

// What it means that the stream of a question closed unanswered: kUnavailable, or kInvalidArgument where another
// program than a chief listens at `address`, with what it is.
absl::Status NoAnswer(const std::string& address, const absl::Status& closed);

// The answer. Also what NoAnswer says, where no chief listens at `address` ("host:port").
absl::StatusOr<Body> Ask(const Body& question, const std::string& address, Transport& transport, const Clock& clock,
                         StopSource& stop, Duration timeout);

// Tries again, ever more slowly, while nobody is there or answers.
absl::StatusOr<Body> AskUntilAnswered(const Body& question, const std::string& address, Transport& transport,
                                      const Clock& clock, StopSource& stop, Duration timeout);

}  // namespace evenkeel
