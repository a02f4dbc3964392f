#include "evenkeel/core/available_memory.h"

#include <catch2/catch.hpp>

#include "core/available_memory.h"

namespace evenkeel {
namespace {

TEST_CASE("a field is found by its whole name", "[core][memory]") {
  constexpr char kText[] = "MemFree:   12 kB\nMemAvailable:     34 kB\n\ninactive_file 56\ntotal_inactive_file 78\n";
  CHECK(internal::FieldOf(kText, "MemAvailable:") == 34);
  CHECK(internal::FieldOf(kText, "inactive_file") == 56);
  CHECK(internal::FieldOf(kText, "total_inactive_file") == 78);
  CHECK(internal::FieldOf(kText, "file") == std::nullopt);
  CHECK(internal::FieldOf("inactive_file many\n", "inactive_file") == std::nullopt);
  CHECK(internal::FieldOf("", "inactive_file") == std::nullopt);
}

TEST_CASE("a control group leaves its limit less what it cannot give up", "[core][memory]") {
  using internal::LeftInCgroup;
  CHECK(LeftInCgroup("1000\n", "700\n", "anon 400\ninactive_file 200\n", "inactive_file") == 500);
  CHECK(LeftInCgroup("1000\n", "700\n", "", "inactive_file") == 300);
  CHECK(LeftInCgroup("1000\n", "1200\n", "inactive_file 0\n", "inactive_file") == 0);
  CHECK(LeftInCgroup("max\n", "700\n", "", "inactive_file") == std::nullopt);
  CHECK(LeftInCgroup("", "", "", "inactive_file") == std::nullopt);
}

TEST_CASE("this machine has memory", "[core][memory]") { CHECK(AvailableMemory() > 0); }

}  // namespace
}  // namespace evenkeel
