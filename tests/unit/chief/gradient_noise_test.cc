// The noise scale from gradients whose true mean and covariance are known, and a global batch that follows it.
#include "chief/gradient_noise.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "chief/global_batch.h"
#include "evenkeel/core/random.h"

namespace evenkeel {
namespace {

constexpr std::size_t kFloats = 40;

// One sample's gradient is (3, 0, 0, ...) and normal noise of another size in each float; trace of the covariance 0
// ... 39.
struct Model {
  double gradient_squared = 9;
  double trace = 0;
  std::vector<double> deviations;

  Model() {
    for (std::size_t i = 0; i < kFloats; ++i) {
      deviations.push_back(std::sqrt(static_cast<double>(i)));
      trace += static_cast<double>(i);
    }
  }
  double noise_scale() const { return trace / gradient_squared; }
  // A step of updates of these sizes.
  void Step(Rng& rng, const std::vector<std::int64_t>& batches, GradientNoise& noise) const {
    std::vector<UpdateNorm> updates;
    std::vector<double> all(kFloats, 0.0);
    for (std::int64_t batch : batches) {
      double squared = 0;
      for (std::size_t i = 0; i < kFloats; ++i) {
        const auto count = static_cast<double>(batch);
        const double sum = (i == 0 ? 3 * count : 0.0) + deviations[i] * std::sqrt(count) * rng.NextNormal();
        squared += sum * sum;
        all[i] += sum;
      }
      updates.push_back({batch, squared});
    }
    double together = 0;
    for (double sum : all) together += sum * sum;
    REQUIRE(noise.Observe(updates, together));
  }
};

BatchingConfig Following(std::int64_t min, std::int64_t max, std::int64_t window) {
  BatchingConfig config;
  config.gradnorm_window = window;
  config.noise_scale.emplace();
  config.noise_scale->min = min;
  config.noise_scale->max = max;
  return config;
}

// An estimate that is exactly this, from `steps` steps.
GradientNoise Exactly(double noise_scale, std::int64_t steps) {
  GradientNoise noise(steps);
  REQUIRE(noise.Restore({steps, noise_scale, 1, 1, 1}));
  return noise;
}

}  // namespace

TEST_CASE("500 steps of equal and of unequal batches give the same noise scale, the true one", "[chief]") {
  const Model model;
  const std::vector<std::vector<std::int64_t>> splits = {
      {64, 64, 64, 64}, {16, 16, 16, 208}, {16, 80, 160}, {1, 255}, {8, 24, 40, 56, 128}};
  for (const auto& split : splits) {
    INFO(split.size() << " updates, the first of " << split[0]);
    Rng rng(7, split.size());
    GradientNoise noise(500);
    for (int step = 0; step < 500; ++step) model.Step(rng, split, noise);
    REQUIRE(noise.NoiseScale().has_value());
    CHECK(*noise.NoiseScale() == Approx(model.noise_scale()).epsilon(0.05));
    CHECK(noise.Save().noise == Approx(model.trace).epsilon(0.05));
    CHECK(noise.Save().gradient == Approx(model.gradient_squared).epsilon(0.05));
    // The efficiency depends on how many updates there are, not on their sizes.
    const auto updates = static_cast<double>(split.size());
    const double expected =
        (model.gradient_squared + model.trace / 256) / (model.gradient_squared + model.trace * updates / 256);
    CHECK(*noise.Efficiency() == Approx(expected).epsilon(0.03));
  }
}

TEST_CASE("the noise scale does not depend on the global batch", "[chief]") {
  const Model model;
  for (std::int64_t part : {8, 32, 512}) {
    Rng rng(3, static_cast<std::uint64_t>(part));
    GradientNoise noise(1000);
    for (int step = 0; step < 1000; ++step) model.Step(rng, {part, 2 * part, 3 * part}, noise);
    CHECK(*noise.NoiseScale() == Approx(model.noise_scale()).epsilon(0.1));
  }
}

TEST_CASE("updates that are all the same have no noise and efficiency 1; opposite ones have no gradient", "[chief]") {
  GradientNoise same(10);
  const std::vector<UpdateNorm> equal = {{10, 400}, {30, 3600}};  // means of norm 2
  REQUIRE(same.Observe(equal, 80.0 * 80.0));
  CHECK(*same.NoiseScale() == Approx(0).margin(1e-9));
  CHECK(*same.Efficiency() == Approx(1));

  GradientNoise opposite(10);
  const std::vector<UpdateNorm> against = {{10, 400}, {10, 400}};
  REQUIRE(opposite.Observe(against, 0));
  CHECK_FALSE(opposite.NoiseScale().has_value());
  CHECK(*opposite.Efficiency() == Approx(0));
}

TEST_CASE("a single update and what is no norm teach nothing", "[chief]") {
  GradientNoise noise(10);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(noise.Observe(std::vector<UpdateNorm>{{10, 1}}, 1));
  CHECK_FALSE(noise.Observe(std::vector<UpdateNorm>{{10, 1}, {10, nan}}, 1));
  CHECK_FALSE(noise.Observe(std::vector<UpdateNorm>{{10, 1}, {0, 1}}, 1));
  CHECK_FALSE(noise.Observe(std::vector<UpdateNorm>{{10, 1}, {10, 1}}, nan));
  CHECK(noise.steps() == 0);
  CHECK_FALSE(noise.NoiseScale().has_value());
  CHECK_FALSE(noise.Restore({1, nan, 1, 1, 1}));
}

TEST_CASE("the estimate follows a change within its window, and goes on from what was saved", "[chief]") {
  const Model model;
  Rng rng(11);
  GradientNoise noise(50);
  for (int step = 0; step < 300; ++step) model.Step(rng, {64, 64}, noise);
  GradientNoise other(50);
  REQUIRE(other.Restore(noise.Save()));
  Model larger;
  for (double& deviation : larger.deviations) deviation *= 2;
  Rng same = rng;
  for (int step = 0; step < 200; ++step) {
    larger.Step(rng, {64, 64}, noise);
    larger.Step(same, {64, 64}, other);
  }
  CHECK(*noise.NoiseScale() == Approx(4 * model.noise_scale()).epsilon(0.2));
  CHECK(noise.Save() == other.Save());
}

TEST_CASE("a fixed global batch follows nothing", "[chief]") {
  GlobalBatch batch(128, BatchingConfig{});
  CHECK(batch.Follow(Exactly(1e6, 1000), 0, 0).empty());
  batch.Restore(4096, 0);
  CHECK(batch.size() == 128);
  CHECK(batch.LearningRateFactor() == 1);
}

TEST_CASE("the global batch grows with the noise scale, a factor at a time, once a window, within its bounds",
          "[chief]") {
  GlobalBatch batch(128, Following(128, 1000, 20));
  CHECK(batch.Follow(Exactly(700, 19), 0, 0).empty());
  CHECK(absl::StrContains(batch.Follow(Exactly(700, 20), 0, 0),
                          "256 samples now, not 128: the gradient noise scale is 700"));
  CHECK(batch.Follow(Exactly(700, 39), 0, 0).empty());
  CHECK_FALSE(batch.Follow(Exactly(700, 40), 0, 0).empty());
  CHECK(batch.size() == 512);
  CHECK_FALSE(batch.Follow(Exactly(700, 60), 0, 0).empty());
  CHECK(batch.size() == 700);
  CHECK(batch.Follow(Exactly(850, 80), 0, 0).empty());  // by less than least_factor
  CHECK_FALSE(batch.Follow(Exactly(1e6, 80), 0, 0).empty());
  CHECK(batch.size() == 1000);
  CHECK_FALSE(batch.Follow(Exactly(10, 100), 0, 0).empty());
  CHECK(batch.size() == 500);
  CHECK_FALSE(batch.Follow(Exactly(10, 120), 0, 0).empty());
  CHECK_FALSE(batch.Follow(Exactly(10, 140), 0, 0).empty());
  CHECK(batch.Follow(Exactly(10, 160), 0, 0).empty());
  CHECK(batch.size() == 128);  // min
}

TEST_CASE("no global batch is more than the workers may take together", "[chief]") {
  GlobalBatch batch(128, Following(128, 1000, 1));
  CHECK_FALSE(batch.Follow(Exactly(700, 1), 0, 200).empty());
  CHECK(batch.size() == 200);
}

TEST_CASE("no global batch is less than the workers must take together, nor more than its own bound for it",
          "[chief]") {
  BatchingConfig config = Following(128, 1000, 1);
  config.noise_scale->min = 4;
  GlobalBatch batch(128, config);
  CHECK_FALSE(batch.Follow(Exactly(5, 1), 48, 0).empty());
  CHECK(batch.size() == 64);
  CHECK_FALSE(batch.Follow(Exactly(5, 2), 48, 0).empty());
  CHECK(batch.size() == 48);
  CHECK(batch.Follow(Exactly(5, 3), 48, 40).empty());         // the floor counts more
  CHECK_FALSE(batch.Follow(Exactly(5, 3), 5000, 0).empty());  // at once, for less cannot be cut
  CHECK(batch.size() == 1000);
}

TEST_CASE("the learning rate goes with the global batch as it was chosen to", "[chief]") {
  using Rule = BatchingConfig::NoiseScale::LearningRate;
  for (const auto& [rule, factor] :
       {std::pair(Rule::kNone, 1.0), std::pair(Rule::kLinear, 4.0), std::pair(Rule::kSquareRoot, 2.0)}) {
    BatchingConfig config = Following(100, 1000, 1);
    config.noise_scale->learning_rate = rule;
    GlobalBatch batch(100, config);
    CHECK(batch.LearningRateFactor() == 1);
    batch.Restore(400, 0);
    CHECK(batch.LearningRateFactor() == Approx(factor));
  }
}

}  // namespace evenkeel
