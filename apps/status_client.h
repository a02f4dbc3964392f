// Asks a chief how its job stands, without joining it.
//
// Threading: one caller at a time.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel::apps {

class StatusClient {
 public:
  // `transport` outlives this object.
  StatusClient(Transport& transport, std::string chief_address);
  ~StatusClient();
  // The chief's status, a JSON object; of a chief that left since the last question, what it said of its job's end.
  // Keeps the stream for the next question. Errors: those of
  // NoAnswer (question.h) and kDeadlineExceeded name the address.
  absl::StatusOr<std::string> Ask(Duration timeout);
  // A chief that had answered closed the stream itself, as it does when its job has ended; one that dies does not.
  bool chief_left() const { return chief_left_; }

 private:
  struct Exchange;
  Transport& transport_;
  const std::string address_;
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Stream> stream_;
  bool answered_ = false;  // on this stream
  bool chief_left_ = false;
};

}  // namespace evenkeel::apps
