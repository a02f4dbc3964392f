#include "evenkeel/protocol/renewal.h"

#include <catch2/catch.hpp>

namespace evenkeel {
namespace {

const TimePoint kStart{std::chrono::seconds(100)};

Renewal Begun() {
  Renewal renewal;
  Welcome welcome;
  welcome.lease_ms = 1000;
  welcome.renew_ms = 200;
  renewal.Begin(welcome, kStart);
  return renewal;
}

TEST_CASE("renewals come at their interval while the chief answers", "[protocol]") {
  Renewal renewal = Begun();
  TimePoint now = kStart;
  for (int i = 0; i < 100; ++i) {
    REQUIRE(renewal.next() == now + Milliseconds(200));
    now = renewal.next();
    REQUIRE(renewal.Due(now));
    renewal.Heard(now + Milliseconds(1));
  }
}

TEST_CASE("a lease's worth of renewals without a word means that the chief is away since its last one", "[protocol]") {
  Renewal renewal = Begun();
  renewal.Heard(kStart + Milliseconds(50));
  for (int i = 0; i < 5; ++i) REQUIRE(renewal.Due(renewal.next()));
  REQUIRE(renewal.next() == kStart + Milliseconds(1200));
  REQUIRE_FALSE(renewal.Due(renewal.next()));
  CHECK(renewal.heard() == kStart + Milliseconds(50));
  CHECK(renewal.next() == kNever);
}

TEST_CASE("a member that was held up itself blames nobody", "[protocol]") {
  Renewal renewal = Begun();
  const TimePoint later = kStart + std::chrono::hours(1);
  REQUIRE(renewal.Due(later));
  CHECK(renewal.next() == later + Milliseconds(200));
}

TEST_CASE("an interval above the lease still leaves the chief time for an answer", "[protocol]") {
  Renewal renewal;
  Welcome welcome;
  welcome.lease_ms = 10;
  welcome.renew_ms = 0;
  renewal.Begin(welcome, kStart);
  CHECK(renewal.next() == kStart + Milliseconds(1));
  welcome.renew_ms = 500;
  renewal.Begin(welcome, kStart);
  REQUIRE(renewal.Due(renewal.next()));
  REQUIRE(renewal.Due(renewal.next()));
  REQUIRE_FALSE(renewal.Due(renewal.next()));
}

}  // namespace
}  // namespace evenkeel
