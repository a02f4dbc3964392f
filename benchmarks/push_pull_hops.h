// When a round passes the stations on its way: written by one worker and one server process into memory that both
// share.
//
// Threading: each station is written by one thread at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel::bench {

enum class Station : std::uint8_t {
  kBegin,         // worker: the round begins
  kAllSent,       // worker: every Stage and the Pull are with the transport
  kFirstStage,    // server: the first Stage is delivered
  kLastStageIn,   // server: the last Stage that carries floats is delivered
  kLastStageOut,  // server: it is in its slot
  kClosingIn,     // server: the closing Stage is delivered
  kSealed,        // chief: the set is sealed; the decision goes out
  kApplyBegins,   // server: the apply thread begins
  kApplyEnds,     // server: the version is published
  kApplied,       // chief: hears of it
  kPullIn,        // server: the Pull was delivered
  kFirstDataOut,  // server: the first PullData is given to the transport
  kLastDataOut,   // server: the transport has taken the last
  kFirstDataIn,   // worker: the first PullData is delivered
  kLastDataIn,    // worker: the last one that carries floats is delivered
  kMarkerIn,      // worker: that all has come
  kWoken,         // worker: the step loop goes on
  kCount,
};
const char* NameOf(Station station);

class HopBoard {
 public:
  // In memory that processes started from now on share.
  static absl::StatusOr<HopBoard*> Create();
  void Begin();
  void Pass(Station station) { PassAt(station, Clock::Real().Now()); }
  void PassAt(Station station, TimePoint at) {
    Of(station).store(at.time_since_epoch().count(), std::memory_order_relaxed);
  }
  void PassFirst(Station station) {
    if (Of(station).load(std::memory_order_relaxed) == 0) Pass(station);
  }
  // Ends a round: notes when each station was passed since it began.
  void End(bool counts);
  // Median of the noted times, seconds since the round began; negative: never passed.
  double Median(Station station) const;
  std::size_t rounds() const { return static_cast<std::size_t>(noted_.load()); }

 private:
  static constexpr std::size_t kStations = static_cast<std::size_t>(Station::kCount);
  static constexpr std::size_t kMostRounds = 4096;  // the newest
  std::atomic<std::int64_t>& Of(Station station) { return at_[static_cast<std::size_t>(station)]; }

  std::array<std::atomic<std::int64_t>, kStations> at_{};
  std::atomic<std::int64_t> noted_{0};
  std::array<std::array<std::int64_t, kStations>, kMostRounds> rounds_{};
};

// A server's streams to workers, with what passes noted on the board.
Acceptor WithStations(Acceptor acceptor, HopBoard& board);

}  // namespace evenkeel::bench
