#include "transport/shm/channel.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel::shm {
namespace {

std::uint32_t Padded(std::size_t bytes) { return static_cast<std::uint32_t>((bytes + 7) / 8 * 8); }

void Futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  // An interrupted or outdated wait is a wake-up: the caller looks again.
  (void)syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

absl::Status Nonsense(std::string what) {
  return absl::DataLossError(absl::StrCat("[shm] the other end wrote ", what));
}

}  // namespace

Channel::Channel(std::byte* memory, int side)
    : shared_(*reinterpret_cast<Shared*>(memory)),
      side_(side),
      out_(shared_.rings[side]),
      in_(shared_.rings[1 - side]) {}

bool Channel::Push(Entry entry, std::span<const std::byte> header, std::span<const std::byte> payload,
                   std::size_t outside_header) {
  EK_CHECK(header.size() + payload.size() <= kMaxInlineBytes);
  entry.header_bytes = static_cast<std::uint32_t>(header.size() + outside_header);
  entry.inline_bytes = static_cast<std::uint32_t>(payload.size());
  entry.bytes = Padded(sizeof(Entry) + header.size() + payload.size());
  const std::uint64_t tail = out_.tail.load(std::memory_order_acquire);
  if (tail > pushed_ || pushed_ - tail > kRingBytes) return false;  // nonsense; Consumed says so
  std::size_t at = pushed_ % kRingBytes;
  const std::size_t to_end = kRingBytes - at;
  const std::size_t skip = to_end < entry.bytes ? to_end : 0;
  if (kRingBytes - (pushed_ - tail) < skip + entry.bytes) return false;
  if (skip > 0) {
    // At least 8 bytes are left, room for an entry's first two words.
    const std::uint32_t filler[2] = {static_cast<std::uint32_t>(skip), static_cast<std::uint32_t>(EntryKind::kSkip)};
    std::memcpy(out_.bytes + at, filler, sizeof(filler));
    at = 0;
  }
  std::byte* to = out_.bytes + at;
  std::memcpy(to, &entry, sizeof(entry));
  if (!header.empty()) std::memcpy(to + sizeof(entry), header.data(), header.size());
  if (!payload.empty()) std::memcpy(to + sizeof(entry) + header.size(), payload.data(), payload.size());
  pushed_ += skip + entry.bytes;
  out_.head.store(pushed_, std::memory_order_release);
  return true;
}

absl::StatusOr<std::uint64_t> Channel::Consumed() const {
  const std::uint64_t tail = out_.tail.load(std::memory_order_acquire);
  if (tail > pushed_ || pushed_ - tail > kRingBytes) return Nonsense("a place in the ring that it cannot have reached");
  return tail;
}

bool Channel::HasIncoming() const { return in_.head.load(std::memory_order_acquire) != popped_; }

absl::StatusOr<std::optional<Channel::Incoming>> Channel::Peek() {
  for (;;) {
    const std::uint64_t head = in_.head.load(std::memory_order_acquire);
    if (head == popped_) return std::nullopt;
    if (head < popped_ || head - popped_ > kRingBytes) return Nonsense("more than the ring holds");
    const std::size_t available = head - popped_;
    const std::size_t at = popped_ % kRingBytes;
    const std::size_t to_end = std::min(available, kRingBytes - at);
    std::uint32_t first[2] = {};
    if (to_end < sizeof(first)) return Nonsense("half an entry");
    std::memcpy(first, in_.bytes + at, sizeof(first));
    if (first[0] % 8 != 0 || first[0] < sizeof(first) || first[0] > to_end) return Nonsense("an entry beyond the ring");
    if (first[1] == static_cast<std::uint32_t>(EntryKind::kSkip)) {
      popped_ += first[0];
      in_.tail.store(popped_, std::memory_order_release);
      continue;
    }
    Incoming incoming;
    if (to_end < sizeof(Entry)) return Nonsense("half an entry");
    std::memcpy(&incoming.entry, in_.bytes + at, sizeof(Entry));
    const Entry& entry = incoming.entry;
    const std::size_t inside = std::size_t{entry.header_bytes} + entry.inline_bytes;
    if (entry.bytes != first[0] || static_cast<std::uint32_t>(entry.kind) != first[1] || entry.bytes < sizeof(Entry) ||
        entry.bytes > to_end) {
      return Nonsense("an entry that changes");
    }
    if (entry.kind > EntryKind::kGoodbye) return Nonsense("an entry of no known kind");
    const bool in_ring = entry.kind != EntryKind::kAllOutside;
    if (in_ring && inside > entry.bytes - sizeof(Entry)) return Nonsense("a message longer than its entry");
    const std::byte* body = in_.bytes + at + sizeof(Entry);
    if (in_ring) {
      incoming.header.assign(reinterpret_cast<const char*>(body), entry.header_bytes);
      incoming.payload = {body + entry.header_bytes, entry.inline_bytes};
    }
    peeked_ = entry.bytes;
    return incoming;
  }
}

void Channel::Pop() {
  EK_CHECK(peeked_ > 0);
  popped_ += peeked_;
  peeked_ = 0;
  in_.tail.store(popped_, std::memory_order_release);
}

void Channel::RingOther() {
  Side& other = shared_.sides[1 - side_];
  other.bell.fetch_add(1, std::memory_order_seq_cst);
  if (other.asleep.load(std::memory_order_seq_cst) != 0) Futex(other.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void Channel::RingOwn() {
  Side& own = shared_.sides[side_];
  own.bell.fetch_add(1, std::memory_order_seq_cst);
  Futex(own.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void Channel::WaitForBell(std::uint32_t seen, Duration look, TimePoint deadline) {
  Side& own = shared_.sides[side_];
  auto rung = [&] { return own.bell.load(std::memory_order_acquire) != seen; };
  if (rung()) return AwakeAgain();
  auto listened_to = [&] { return listened_to_.load(std::memory_order_seq_cst); };
  if (look > Duration::zero() && !listened_to() && patience_.Looks()) {
    const Looked looked = LookFor(look, [&] { return rung() || listened_to(); });
    const bool found = rung() && !listened_to();
    if (found || !listened_to()) patience_.Learn(found && looked == Looked::kFound);
    if (found) return AwakeAgain();
  }
  // Whoever listens calls when that ends; until then the other end need not.
  if (!listened_to()) own.asleep.store(1, std::memory_order_seq_cst);
  while (!rung()) {
    const TimePoint now = Clock::Real().Now();
    if (now >= deadline) break;
    // A long wait is cut up, so that no sum overflows; nothing depends on the length.
    const auto left = std::min<Duration>(deadline - now, std::chrono::hours(1));
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    const timespec timeout{.tv_sec = static_cast<time_t>(ns / 1'000'000'000),
                           .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
    Futex(own.bell, FUTEX_WAIT, seen, &timeout);
  }
  AwakeAgain();
}

// Also where a listener has said on its way out that the other end must wake whoever waits here.
void Channel::AwakeAgain() { shared_.sides[side_].asleep.store(0, std::memory_order_seq_cst); }

void Channel::BeginToListen() {
  listened_to_.store(true, std::memory_order_seq_cst);
  shared_.sides[side_].asleep.store(0, std::memory_order_seq_cst);
}

void Channel::EndToListen(std::uint32_t seen) {
  Side& own = shared_.sides[side_];
  listened_to_.store(false, std::memory_order_seq_cst);
  own.asleep.store(1, std::memory_order_seq_cst);
  if (own.bell.load(std::memory_order_seq_cst) != seen) Futex(own.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void Channel::Revoke() {
  shared_.sides[side_].revoked.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace evenkeel::shm
