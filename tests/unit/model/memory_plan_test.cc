// What shares memory, and that placement never lets two living buffers meet.
#include "model/memory_plan.h"

#include <catch2/catch.hpp>

#include "evenkeel/core/random.h"
#include "unit/model/model_harness.h"

namespace evenkeel::model_test {
namespace {

TEST_CASE("buffers that live at the same time never overlap, and dead memory is used again", "[model]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    std::vector<PlannedBuffer> buffers;
    std::vector<std::size_t> sizes;
    std::size_t sum = 0;
    for (int i = 0; i < 40; ++i) {
      PlannedBuffer buffer;
      buffer.first = static_cast<int>(rng.Below(30));
      buffer.last = buffer.first + static_cast<int>(rng.Below(6));
      buffers.push_back(buffer);
      sizes.push_back(rng.Below(5) == 0 ? 0 : rng.Below(1000));
      sum += sizes.back();
    }
    const Placement placement = PlaceBuffers(buffers, sizes);
    for (std::size_t a = 0; a < buffers.size(); ++a) {
      REQUIRE(placement.offsets[a] % 64 == 0);
      REQUIRE(placement.offsets[a] + sizes[a] <= placement.total);
      for (std::size_t b = 0; b < a; ++b) {
        const bool together = buffers[a].first <= buffers[b].last && buffers[b].first <= buffers[a].last;
        if (!together || sizes[a] == 0 || sizes[b] == 0) continue;
        const bool apart = placement.offsets[a] + sizes[a] <= placement.offsets[b] ||
                           placement.offsets[b] + sizes[b] <= placement.offsets[a];
        REQUIRE(apart);
      }
    }
    REQUIRE(placement.total < sum);
  }
}

MemoryPlan PlanOf(std::vector<LayerConfig> layers, Shape input) {
  static Graph graph;
  ModelOptions options{.input = std::move(input)};
  absl::StatusOr<Graph> built = BuildGraph(ModelConfig{std::move(layers), {}}, options);
  REQUIRE(built.ok());
  graph = *std::move(built);
  return PlanMemory(graph, false, 1);
}

TEST_CASE("an activation works in place where nobody reads what it overwrites", "[model]") {
  SECTION("after dense and flatten") {
    const MemoryPlan plan = PlanOf({DenseLayer("a", 4, "relu"), Plain("flatten", "f"), DenseLayer("out", 2)}, {3});
    CHECK(plan.value_buffers[2] == plan.value_buffers[1]);
    CHECK(plan.value_buffers[3] == plan.value_buffers[1]);
    CHECK(plan.gradient_buffers[1] == plan.gradient_buffers[3]);
  }
  SECTION("not where the layer before has another reader") {
    const MemoryPlan plan =
        PlanOf({DenseLayer("a", 4), Plain("relu", "r"), Plain("add", "s", {"r", "a"}), DenseLayer("out", 2)}, {3});
    CHECK(plan.value_buffers[2] != plan.value_buffers[1]);
  }
  SECTION("not gelu, whose derivative needs its argument") {
    const MemoryPlan plan = PlanOf({DenseLayer("a", 4, "gelu"), DenseLayer("out", 2)}, {3});
    CHECK(plan.value_buffers[2] != plan.value_buffers[1]);
    CHECK(plan.gradient_buffers[2] == plan.gradient_buffers[1]);
  }
  SECTION("not over a relu's output, which its own backward pass reads") {
    const MemoryPlan plan = PlanOf({DenseLayer("a", 4, "relu"), DropoutLayer("d", 0.5), DenseLayer("out", 2)}, {3});
    CHECK(plan.value_buffers[3] != plan.value_buffers[2]);
  }
}

TEST_CASE("no gradient is planned for the input, nor where nothing before could use it", "[model]") {
  const MemoryPlan plan = PlanOf({Plain("relu", "r"), DenseLayer("a", 4), DenseLayer("out", 2)}, {3});
  CHECK(plan.gradient_buffers[0] == -1);
  CHECK(plan.gradient_buffers[1] == -1);
  CHECK(plan.routes[1][0].written == -1);
  CHECK(plan.routes[2][0].written >= 0);
}

}  // namespace
}  // namespace evenkeel::model_test
