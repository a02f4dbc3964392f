#include "evenkeel/protocol/stream.h"

#include <array>
#include <catch2/catch.hpp>
#include <set>

namespace evenkeel {
namespace {

TEST_CASE("backoff grows to its cap, drawn from the upper half, and starts again after a reset", "[protocol]") {
  Backoff backoff(Milliseconds(100), Milliseconds(1000), 5);
  for (std::int64_t expected : {100, 200, 400, 800, 1000, 1000, 1000}) {
    Duration delay = backoff.Next();
    CHECK(delay >= Milliseconds(expected) / 2);
    CHECK(delay < Milliseconds(expected));
  }
  backoff.Reset();
  CHECK(backoff.Next() < Milliseconds(100));
}

TEST_CASE("backoff stays at its cap for ever and draws anew each time", "[protocol]") {
  Backoff backoff(Milliseconds(1), std::chrono::hours(1000), 5);
  std::set<Duration> delays;
  for (int i = 0; i < 100; ++i) {
    Duration delay = backoff.Next();
    CHECK(delay > Duration::zero());
    CHECK(delay < std::chrono::hours(1000));
    delays.insert(delay);
  }
  CHECK(delays.size() > 90);
  CHECK(*delays.rbegin() >= std::chrono::hours(500));
}

TEST_CASE("a payload in pieces copies out whole", "[protocol]") {
  std::array<std::byte, 3> a{std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 2> b{std::byte{4}, std::byte{5}};
  std::array<std::span<const std::byte>, 3> pieces{std::span<const std::byte>(a), std::span<const std::byte>(), b};
  PayloadIn payload(pieces);
  REQUIRE(payload.size() == 5);
  std::array<std::byte, 5> out{};
  CHECK(payload.CopyTo(out));
  CHECK(out == std::array{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}});
}

TEST_CASE("a payload that its sender took back while it was read does not count", "[protocol]") {
  std::array<std::byte, 3> bytes{};
  std::array<std::span<const std::byte>, 1> pieces{bytes};
  std::atomic<std::uint32_t> revoked{0};
  PayloadIn payload(pieces, &revoked);
  std::array<std::byte, 3> out{};
  CHECK(payload.CopyTo(out));
  revoked = 1;
  CHECK_FALSE(payload.CopyTo(out));
  CHECK_FALSE(payload.Whole());
}

}  // namespace
}  // namespace evenkeel
