// How a connection of the tcp way begins. Numbers are little-endian.
//
//   from the peer that connects   "EKTC"   u32 version   16 bytes of token
//   from the door                 "EKTC"   u32 version
//
// An offer, which travels over gRPC:   u16 port   16 bytes of token
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/mutex.h"

namespace evenkeel {

constexpr std::size_t kTokenBytes = 16;
constexpr std::size_t kGreetingBytes = 8;
constexpr std::size_t kHelloBytes = kGreetingBytes + kTokenBytes;

using Token = std::array<std::byte, kTokenBytes>;
using Greeting = std::array<std::byte, kGreetingBytes>;
using TokenHello = std::array<std::byte, kHelloBytes>;

struct TcpOffer {
  int port = 0;
  Token token{};
};
std::string EncodeOffer(const TcpOffer& offer);
// Errors: kInvalidArgument.
absl::StatusOr<TcpOffer> DecodeOffer(std::string_view bytes);

Greeting MakeGreeting();
TokenHello MakeHello(const Token& token);
// Whether bytes can be how a greeting or a hello begins.
bool BeginsAsGreeting(std::span<const std::byte> bytes);
Token TokenOf(const TokenHello& hello);

// Tokens that are open: each is good for one connection within its life. Thread-safe.
class OfferBook {
 public:
  OfferBook(std::size_t offers_max, Duration life) : offers_max_(offers_max), life_(life) {}
  // Errors: kResourceExhausted.
  absl::StatusOr<Token> Add(TimePoint now);
  // Whether the token is open; it is not any more. Takes equally long for all that are not.
  bool Take(const Token& token, TimePoint now);

 private:
  struct Entry {
    Token token;
    TimePoint until;
  };
  void DropOld(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::size_t offers_max_;
  const Duration life_;
  Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace evenkeel
