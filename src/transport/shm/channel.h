// Two rings of messages in one block that two processes share, a bell for each end, and how bytes outside the rings are
// named. What the other end writes here is not trusted: every number is copied once and checked before use.
//
//   block = Shared; ring i is written by side i, read by side 1 - i
//   entry = Entry, then header_bytes, then inline_bytes, padded to 8 bytes; it never wraps (kSkip fills the end)
//   head, tail count bytes since the start
//
// Threading: one thread at a time pushes, one at a time reads; Ring may be called by any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/patience.h"

namespace evenkeel::shm {

constexpr std::size_t kRingBytes = 256 << 10;
constexpr std::size_t kMaxInlineBytes = 32 << 10;  // header and payload that may lie in the ring

enum class EntryKind : std::uint32_t { kSkip = 0, kInline = 1, kPayloadOutside = 2, kAllOutside = 3, kGoodbye = 4 };

struct Entry {
  std::uint32_t bytes = 0;  // of all the entry, padding included
  EntryKind kind = EntryKind::kSkip;
  std::uint32_t header_bytes = 0;
  std::uint32_t inline_bytes = 0;  // payload in the ring
  std::uint64_t block = 0;         // kPayloadOutside: the payload; kAllOutside: header, then payload
  std::uint64_t offset = 0;
  std::uint64_t payload_bytes = 0;  // outside
};

struct Side {
  alignas(64) std::atomic<std::uint32_t> bell;  // a futex
  std::atomic<std::uint32_t> asleep;
  // Payloads outside the rings that this side has sent and that are not consumed yet may change from now on.
  alignas(64) std::atomic<std::uint32_t> revoked;
};
struct Ring {
  alignas(64) std::atomic<std::uint64_t> head;
  alignas(64) std::atomic<std::uint64_t> tail;
  std::byte bytes[kRingBytes];
};
struct Shared {
  Side sides[2];
  Ring rings[2];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// One end of the rings.
class Channel {
 public:
  // `side`: 0 or 1. `memory`: sizeof(Shared) bytes, zeroed before either end begins, which outlive the channel.
  Channel(std::byte* memory, int side);

  // False: no room. Sets the entry's sizes. `outside_header`: bytes of a header that lies outside the ring.
  bool Push(Entry entry, std::span<const std::byte> header, std::span<const std::byte> payload,
            std::size_t outside_header);
  // Bytes pushed so far, and those that the other end has consumed. The difference is what is on its way.
  std::uint64_t pushed() const { return pushed_; }
  // Errors: kDataLoss, the other end writes nonsense.
  absl::StatusOr<std::uint64_t> Consumed() const;

  struct Incoming {
    Entry entry;
    std::string header;                  // unless kAllOutside
    std::span<const std::byte> payload;  // in the ring; until Pop
  };
  // The oldest entry; nullopt: none. Errors: kDataLoss.
  absl::StatusOr<std::optional<Incoming>> Peek();
  // Requires that Peek gave an entry.
  void Pop();
  bool HasIncoming() const;
  // So full that the other end may wait for room.
  bool HalfFull() const { return in_.head.load(std::memory_order_acquire) - popped_ >= kRingBytes / 2; }

  // Wakes the other end where it sleeps.
  void RingOther();
  // Wakes whoever waits at this one, also where another thread listens for it.
  void RingOwn();
  // Returns when the bell has been rung since `seen`, or at the deadline. Looks for `look` at most before it sleeps,
  // where that has been worth it. One thread at a time.
  std::uint32_t Bell() const { return shared_.sides[side_].bell.load(std::memory_order_seq_cst); }
  void WaitForBell(std::uint32_t seen, Duration look, TimePoint deadline);
  // Another thread listens meanwhile: the other end's rings wake nobody. At the end whoever waits is woken if there has
  // been one that the listener has not answered, `seen` being the bell as it stood before all that it has answered.
  void BeginToListen();
  void EndToListen(std::uint32_t seen);

  void Revoke();
  const std::atomic<std::uint32_t>& OtherRevoked() const { return shared_.sides[1 - side_].revoked; }

 private:
  void AwakeAgain();

  Shared& shared_;
  const int side_;
  Ring& out_;
  Ring& in_;
  std::uint64_t pushed_ = 0, popped_ = 0;
  std::uint32_t peeked_ = 0;  // bytes of the entry that Peek gave
  Patience patience_;         // of whoever waits
  std::atomic<bool> listened_to_{false};
};

}  // namespace evenkeel::shm
