// What a server's step allocates once it has found its rhythm.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "count_allocations.h"
#include "evenkeel/core/thread_pool.h"
#include "evenkeel/protocol/layout.h"
#include "evenkeel/ps/shard.h"

namespace evenkeel::ps {
namespace {

// But for the list of squared sums that it returns and one of its sources: small, and of the same size at every step.
TEST_CASE("a server's step in its steady state allocates next to nothing", "[ps]") {
  std::vector<TensorSpec> tensors(3);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = std::string(1, static_cast<char>('a' + i));
    tensors[i].shape = Shape{100'000};
  }
  auto layout = std::make_shared<const ParameterLayout>(*ParameterLayout::Create(tensors, 1 << 18, 1));
  ThreadPool pool(2);
  auto shard = *Shard::Create({layout, ServerIndex(0), OptimizerSpec{}, false}, pool);
  const auto at = [](std::uint64_t commit) { return Version{Generation(1), CommitNumber(commit)}; };
  shard->Initialise(1, at(0));
  const StageSlot slots[] = {StageSlot(0), StageSlot(1)};
  for (StageSlot slot : slots) REQUIRE(shard->AllocateSlot(slot).ok());
  Decision decision{.samples = 8, .learning_rate = 0.1};
  std::int64_t counted = 0;
  for (std::uint64_t commit = 1; commit <= 20; ++commit) {
    decision.version = at(commit);
    const std::int64_t before = allocations.load();
    shard->Apply(decision, slots);
    if (commit > 10) counted += allocations.load() - before;
  }
  CHECK(counted <= 10 * 8);
}

}  // namespace
}  // namespace evenkeel::ps
