// The memories of a layout's servers, stepped together.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "evenkeel/core/random.h"
#include "evenkeel/ps/shard.h"

namespace evenkeel::ps {

inline constexpr std::int64_t kBucketBytes = 16 << 10;
inline constexpr std::uint64_t kSeed = 5;

inline Version At(std::uint64_t commit) { return Version{Generation(1), CommitNumber(commit)}; }

inline std::vector<TensorSpec> Model() {
  std::vector<TensorSpec> tensors(4);
  tensors[0] = {.name = "a/weight", .shape = Shape{123, 77}};
  tensors[0].initializer = {.kind = InitializerSpec::Kind::kHeNormal, .fan_in = 123};
  tensors[1] = {.name = "a/bias", .shape = Shape{77}, .decay = false};
  tensors[2] = {.name = "b/weight", .shape = Shape{77, 10}};
  tensors[2].initializer = {.kind = InitializerSpec::Kind::kUniform, .scale = 0.1f};
  tensors[3] = {.name = "norm/mean", .shape = Shape{33}, .statistic = true, .statistic_momentum = 0.75f};
  return tensors;
}

inline OptimizerSpec AdamW() {
  OptimizerSpec optimizer;
  optimizer.kind = OptimizerSpec::Kind::kAdamW;
  optimizer.weight_decay = 0.01f;
  return optimizer;
}

// All servers of a layout, with the same gradients whatever their number.
struct Cluster {
  Cluster(std::uint32_t servers, int threads, OptimizerSpec optimizer = AdamW(), bool measures = false)
      : pool(threads) {
    layout = std::make_shared<const ParameterLayout>(*ParameterLayout::Create(Model(), kBucketBytes, servers));
    for (std::uint32_t s = 0; s < servers; ++s) {
      shards.push_back(*Shard::Create({layout, ServerIndex(s), optimizer, measures}, pool));
      shards.back()->Initialise(kSeed, At(0));
      for (std::uint32_t slot = 0; slot < 3; ++slot) REQUIRE(shards.back()->AllocateSlot(StageSlot(slot)).ok());
    }
  }
  static float Gradient(std::uint64_t commit, std::uint32_t slot, std::int64_t flat) {
    return UnitFloat(Philox(commit, slot, static_cast<std::uint64_t>(flat))[0]) - 0.5f;
  }
  void Stage(std::uint64_t commit) {
    for (auto& shard : shards) {
      for (std::size_t b = 0; b < layout->buckets().size(); ++b) {
        const evenkeel::Stripe& stripe = layout->StripeOf(static_cast<int>(b), shard->place().server);
        for (std::uint32_t slot = 0; slot < 3; ++slot) {
          std::span<float> out = shard->StageInto(StageSlot(slot), static_cast<int>(b));
          for (std::size_t i = 0; i < out.size(); ++i) {
            out[i] = Gradient(commit, slot, stripe.begin + static_cast<std::int64_t>(i));
          }
        }
      }
    }
  }
  void Step(std::uint64_t commit) {
    Stage(commit);
    Apply(commit);
  }
  void Apply(std::uint64_t commit) {
    Decision decision{.version = At(commit), .samples = 30, .learning_rate = 0.01};
    const StageSlot slots[] = {StageSlot(1), StageSlot(0), StageSlot(2)};
    squared_sums.clear();
    for (auto& shard : shards) squared_sums.push_back(shard->Apply(decision, slots));
  }
  // The flat vector.
  std::vector<float> Flat() const {
    std::vector<float> flat(static_cast<std::size_t>(layout->total_floats()));
    for (const auto& shard : shards) {
      PinnedVersion version = shard->Newest();
      for (std::size_t b = 0; b < layout->buckets().size(); ++b) {
        std::span<const float> stripe = shard->StripeOf(version, static_cast<int>(b));
        std::copy(stripe.begin(), stripe.end(),
                  flat.begin() + layout->StripeOf(static_cast<int>(b), shard->place().server).begin);
      }
    }
    return flat;
  }

  ThreadPool pool;
  std::shared_ptr<const ParameterLayout> layout;
  std::vector<std::unique_ptr<Shard>> shards;
  std::vector<std::vector<double>> squared_sums;  // of the last Apply, by server
};

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace evenkeel::ps
