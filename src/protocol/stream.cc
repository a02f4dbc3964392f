#include "evenkeel/protocol/stream.h"

#include <algorithm>
#include <cstring>

#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

void PayloadIn::CopyTo(std::span<std::byte> out) const {
  EK_CHECK(out.size() == size_);
  std::size_t at = 0;
  for (const auto& piece : pieces_) {
    if (piece.empty()) continue;
    if (piece.data() != out.data() + at) std::memcpy(out.data() + at, piece.data(), piece.size());
    at += piece.size();
  }
}

Duration Backoff::Next() {
  Duration delay = std::min(first_, cap_);
  for (std::uint64_t i = 0; i < attempt_ && delay < cap_; ++i) delay = delay > cap_ / 2 ? cap_ : delay * 2;
  if (delay < cap_) ++attempt_;
  double part = 0.5 + 0.5 * UnitFloat(Philox(seed_, 0, drawn_++)[0]);
  return Duration(static_cast<Duration::rep>(static_cast<double>(delay.count()) * part));
}

}  // namespace evenkeel
