#include "evenkeel/protocol/stream.h"

#include <algorithm>
#include <cstring>

#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

// A seqlock's reader: what was read before the fence was read before the word.
bool PayloadIn::Whole() const {
  if (revoked_ == nullptr) return true;
  std::atomic_thread_fence(std::memory_order_acquire);
  return revoked_->load(std::memory_order_relaxed) == 0;
}

bool PayloadIn::CopyTo(std::span<std::byte> out) const {
  EK_CHECK(out.size() == size_);
  std::size_t at = 0;
  for (const auto& piece : pieces_) {
    if (piece.empty()) continue;
    if (out.data() + at != piece.data()) std::memcpy(out.data() + at, piece.data(), piece.size());
    at += piece.size();
  }
  return Whole();
}

Duration Backoff::Next() {
  Duration delay = std::min(first_, cap_);
  for (std::uint64_t i = 0; i < attempt_ && delay < cap_; ++i) delay = delay > cap_ / 2 ? cap_ : delay * 2;
  if (delay < cap_) ++attempt_;
  double part = 0.5 + 0.5 * UnitFloat(Philox(seed_, 0, drawn_++)[0]);
  return Duration(static_cast<Duration::rep>(static_cast<double>(delay.count()) * part));
}

}  // namespace evenkeel
