#include "evenkeel/core/specs.h"

#include <catch2/catch.hpp>

#include "evenkeel/core/ranges.h"

namespace evenkeel {
namespace {

TEST_CASE("an optimizer names its slots", "[core][specs]") {
  OptimizerSpec spec;
  CHECK(SlotNames(spec).empty());
  spec.kind = OptimizerSpec::Kind::kAdam;
  CHECK(SlotNames(spec) == std::vector<std::string>{"m", "v"});
  spec.kind = OptimizerSpec::Kind::kRmsprop;
  CHECK(SlotNames(spec) == std::vector<std::string>{"mean_square", "momentum"});
  spec.momentum = 0;
  CHECK(SlotNames(spec) == std::vector<std::string>{"mean_square"});
}

TEST_CASE("kinds have the names of the experiment file", "[core][specs]") {
  CHECK(std::string(ToString(OptimizerSpec::Kind::kAdamW)) == "adamw");
  CHECK(std::string(ToString(InitializerSpec::Kind::kTruncatedNormal)) == "truncated_normal");
}

TEST_CASE("ranges add up and read as half-open intervals", "[core][ranges]") {
  RangeList ranges = {{0, 128}, {256, 300}};
  CHECK(TotalSize(ranges) == 172);
  CHECK(ToString(ranges) == "[0,128) [256,300)");
  CHECK(ToString(RangeList{}).empty());
}

}  // namespace
}  // namespace evenkeel
