#include "evenkeel/core/patience.h"

#include <atomic>
#include <thread>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

namespace evenkeel {
namespace {

// Waits without a look until the next one.
std::uint32_t Rest(Patience& patience) {
  std::uint32_t waits = 0;
  while (!patience.Looks()) ++waits;
  return waits;
}

TEST_CASE("looks that are worth it go on", "[core][patience]") {
  Patience patience;
  for (int i = 0; i < 100; ++i) {
    REQUIRE(patience.Looks());
    patience.Learn(true);
  }
}

TEST_CASE("after looks for nothing there are fewer and fewer", "[core][patience]") {
  Patience patience;
  std::uint32_t expected = 1;
  for (int i = 0; i < 20; ++i) {
    REQUIRE(Rest(patience) == (i == 0 ? 0 : expected));
    patience.Learn(false);
    if (i > 0) expected = std::min(expected * Patience::kGrowth, Patience::kLongestRest);
  }
  CHECK(expected == Patience::kLongestRest);
}

TEST_CASE("patience comes back with looks that are worth it", "[core][patience]") {
  Patience patience;
  for (int i = 0; i < 20; ++i) {
    Rest(patience);
    patience.Learn(false);
  }
  Rest(patience);
  for (int i = 0; i < 12; ++i) {
    patience.Learn(true);
    REQUIRE(patience.Looks());
  }
  patience.Learn(false);
  CHECK(Rest(patience) == 1);
}

TEST_CASE("looks go on while most are worth it, and all but end while few are", "[core][patience]") {
  for (const auto& [worth, of, looks_least, looks_most] : {std::tuple{9, 10, 5000, 10000}, std::tuple{1, 2, 0, 100}}) {
    CAPTURE(worth, of);
    Patience patience;
    int looks = 0;
    for (int wait = 0; wait < 10000; ++wait) {
      if (!patience.Looks()) continue;
      patience.Learn(looks % of < worth);
      ++looks;
    }
    CHECK(looks >= looks_least);
    CHECK(looks <= looks_most);
  }
}

TEST_CASE("a look ends as soon as there is something, and without it at its time", "[core][patience]") {
  int calls = 0;
  CHECK(LookFor(std::chrono::hours(1), [&] { return ++calls == 3; }) == Looked::kFound);
  CHECK(calls == 3);
  CHECK(LookFor(std::chrono::microseconds(20), [] { return false; }) != Looked::kFound);
}

// Of more threads than cores each would look for an hour.
TEST_CASE("a look that others wait for ends", "[core][patience]") {
  std::vector<std::thread> threads;
  std::atomic<int> crowded{0};
  for (int i = 0; i < 4 * static_cast<int>(std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      // The last of them has a core of its own.
      if (LookFor(std::chrono::hours(1), [&] { return crowded > 0; }) == Looked::kCrowded) ++crowded;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(crowded > 0);
}

}  // namespace
}  // namespace evenkeel
