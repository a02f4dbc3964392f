#include "transport/tcp/handshake.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/random.h"

namespace evenkeel {
namespace {

constexpr std::size_t kPortBytes = 2;

// In time that does not tell where they differ.
bool SameToken(const Token& a, const Token& b) {
  volatile unsigned difference = 0;
  for (std::size_t i = 0; i < kTokenBytes; ++i) difference = difference | std::to_integer<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

std::string EncodeOffer(const TcpOffer& offer) {
  std::string bytes(kPortBytes + kTokenBytes, '\0');
  bytes[0] = static_cast<char>(offer.port & 0xFF);
  bytes[1] = static_cast<char>((offer.port >> 8) & 0xFF);
  std::memcpy(bytes.data() + kPortBytes, offer.token.data(), kTokenBytes);
  return bytes;
}

absl::StatusOr<TcpOffer> DecodeOffer(std::string_view bytes) {
  if (bytes.size() != kPortBytes + kTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("[tcp] an offer has ", bytes.size(), " bytes; right are ", kPortBytes + kTokenBytes));
  }
  TcpOffer offer;
  offer.port = static_cast<unsigned char>(bytes[0]) | static_cast<unsigned char>(bytes[1]) << 8;
  std::memcpy(offer.token.data(), bytes.data() + kPortBytes, kTokenBytes);
  if (offer.port == 0) return absl::InvalidArgumentError("[tcp] an offer names port 0");
  return offer;
}

Greeting MakeGreeting() {
  constexpr std::uint8_t kBytes[kGreetingBytes] = {'E', 'K', 'T', 'C', /*version*/ 1, 0, 0, 0};
  Greeting greeting;
  std::memcpy(greeting.data(), kBytes, kGreetingBytes);
  return greeting;
}

TokenHello MakeHello(const Token& token) {
  TokenHello hello;
  const Greeting greeting = MakeGreeting();
  std::copy(greeting.begin(), greeting.end(), hello.begin());
  std::copy(token.begin(), token.end(), hello.begin() + kGreetingBytes);
  return hello;
}

bool BeginsAsGreeting(std::span<const std::byte> bytes) {
  const Greeting greeting = MakeGreeting();
  return std::memcmp(bytes.data(), greeting.data(), std::min(bytes.size(), greeting.size())) == 0;
}

Token TokenOf(const TokenHello& hello) {
  Token token;
  std::copy(hello.begin() + kGreetingBytes, hello.end(), token.begin());
  return token;
}

void OfferBook::DropOld(TimePoint now) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.until <= now; });
}

absl::StatusOr<Token> OfferBook::Add(TimePoint now) {
  const std::uint64_t numbers[] = {RandomNonce(), RandomNonce()};
  static_assert(sizeof(numbers) == kTokenBytes);
  Token token;
  std::memcpy(token.data(), numbers, kTokenBytes);
  MutexLock lock(mutex_);
  DropOld(now);
  if (entries_.size() >= offers_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("[tcp] ", entries_.size(), " offers are open, no more are allowed"));
  }
  entries_.push_back({token, now + life_});
  return token;
}

bool OfferBook::Take(const Token& token, TimePoint now) {
  MutexLock lock(mutex_);
  DropOld(now);
  std::size_t found = entries_.size();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (SameToken(entries_[i].token, token)) found = i;
  }
  if (found == entries_.size()) return false;
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(found));
  return true;
}

}  // namespace evenkeel
