// When a member renews its lease, and when a chief that does not answer is taken for gone.
//
// The chief answers every renewal. As many renewals in a row without any word of the chief's as make up a lease mean
// that it is frozen or cut off, though its stream is open. What is counted is renewals, not time: a member that was
// held up itself has sent none and blames nobody.
//
// Threading: none; one caller at a time. Time is always passed in.
#pragma once

#include "evenkeel/core/clock.h"
#include "evenkeel/protocol/messages.h"

namespace evenkeel {

class Renewal {
 public:
  // On each stream, with its Welcome.
  void Begin(const Welcome& welcome, TimePoint now);
  // The stream is gone.
  void End() { next_ = kNever; }
  // Any message of the chief's.
  void Heard(TimePoint now);
  // The next one; kNever without a stream.
  TimePoint next() const { return next_; }
  // At next(). False: the chief is silent; nothing is to be sent on this stream any more.
  bool Due(TimePoint now);
  // The chief's last word.
  TimePoint heard() const { return heard_; }

 private:
  Duration interval_ = std::chrono::seconds(1);
  int bound_ = 2;  // renewals without an answer
  int unanswered_ = 0;
  TimePoint next_ = kNever;
  TimePoint heard_{};
};

}  // namespace evenkeel
