#include "evenkeel/ps/shard.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <thread>

#include "unit/ps/shards.h"

namespace evenkeel::ps {
namespace {

TEST_CASE("parameters are the same bits on one, two or three servers and one or two threads", "[ps]") {
  Cluster reference(1, 1);
  const std::vector<float> initial = reference.Flat();
  for (std::uint64_t commit = 1; commit <= 5; ++commit) reference.Step(commit);
  const std::vector<float> expected = reference.Flat();
  REQUIRE_FALSE(SameBits(initial, expected));
  for (std::uint32_t servers : {1u, 2u, 3u, 1200u}) {
    for (int threads : {1, 2}) {
      if (servers == 1200 && threads == 2) continue;
      INFO(servers << " servers, " << threads << " threads");
      Cluster other(servers, threads);
      CHECK(SameBits(other.Flat(), initial));
      for (std::uint64_t commit = 1; commit <= 5; ++commit) other.Step(commit);
      CHECK(SameBits(other.Flat(), expected));
    }
  }
}

TEST_CASE("buckets are handed on when they are made, the last one first, with the bits that are published", "[ps]") {
  Cluster cluster(1, 2);
  Shard& shard = *cluster.shards[0];
  cluster.Stage(1);
  const StageSlot slots[] = {StageSlot(1), StageSlot(0), StageSlot(2)};
  std::vector<int> order;
  std::vector<std::vector<float>> made;
  shard.Apply({.version = At(1), .samples = 30, .learning_rate = 0.01}, slots,
              [&](int bucket, const PinnedVersion& version) {
                CHECK(version.version == At(1));
                CHECK(shard.Newest().version == At(0));  // not published yet
                const std::span<const float> stripe = shard.StripeOf(version, bucket);
                order.push_back(bucket);
                made.emplace_back(stripe.begin(), stripe.end());
              });
  REQUIRE(order.size() == cluster.layout->buckets().size());
  REQUIRE(order.size() > 1);
  CHECK(std::is_sorted(order.rbegin(), order.rend()));
  const PinnedVersion published = shard.Newest();
  CHECK(published.version == At(1));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::span<const float> stripe = shard.StripeOf(published, order[i]);
    CHECK(SameBits(made[i], {stripe.begin(), stripe.end()}));
  }
  Cluster whole(1, 1);
  whole.Step(1);
  CHECK(SameBits(cluster.Flat(), whole.Flat()));
}

TEST_CASE("a sum that was folded bucket by bucket gives the bits and the squared sums of one that was not", "[ps]") {
  for (std::uint32_t servers : {1u, 3u}) {
    Cluster whole(servers, 1, AdamW(), true), folded(servers, 2, AdamW(), true);
    for (std::uint64_t commit = 1; commit <= 3; ++commit) {
      Decision decision{.version = At(commit), .samples = 30, .learning_rate = 0.01};
      decision.updates.resize(3);
      whole.Stage(commit);
      folded.Stage(commit);
      for (std::uint32_t s = 0; s < servers; ++s) {
        const StageSlot slots[] = {StageSlot(0), StageSlot(1), StageSlot(2)};
        const std::vector<double> expected = whole.shards[s]->Apply(decision, slots);
        Shard& shard = *folded.shards[s];
        for (int bucket = 0; bucket < static_cast<int>(folded.layout->buckets().size()); ++bucket) {
          if (bucket % 2 == 0) {
            shard.FoldBucket(bucket, 1, 3, std::span(slots).subspan(1));
          } else {
            shard.FoldBucket(bucket, 1, 3, std::span(slots).subspan(1, 1));
            shard.FoldBucket(bucket, 2, 3, std::span(slots).subspan(2, 1));
          }
        }
        CHECK(shard.Apply(decision, std::span(slots).first(1), nullptr, true) == expected);
      }
      CHECK(SameBits(whole.Flat(), folded.Flat()));
    }
  }
}

TEST_CASE("initial values are those of each tensor, and padding is zero", "[ps]") {
  Cluster cluster(2, 1);
  const std::vector<float> flat = cluster.Flat();
  std::vector<float> expected(flat.size(), 0.0f);
  for (std::size_t t = 0; t < cluster.layout->tensors().size(); ++t) {
    const TensorPlace& place = cluster.layout->places()[t];
    InitializeTensor(cluster.layout->tensors()[t], kSeed, 0,
                     std::span(expected).subspan(static_cast<size_t>(place.offset), static_cast<size_t>(place.count)));
  }
  CHECK(SameBits(flat, expected));
}

TEST_CASE("statistics are averaged by samples and moved by their momentum; no optimizer touches them", "[ps]") {
  Cluster cluster(1, 1);
  const std::int64_t at = cluster.layout->places()[3].offset;
  const float before = cluster.Flat()[static_cast<size_t>(at)];
  cluster.Step(1);
  const float sum = Cluster::Gradient(1, 1, at) + Cluster::Gradient(1, 0, at) + Cluster::Gradient(1, 2, at);
  CHECK(cluster.Flat()[static_cast<size_t>(at)] == Approx(0.75f * before + 0.25f * (sum / 30)));
}

TEST_CASE("tensors without decay are not decayed", "[ps]") {
  OptimizerSpec optimizer;
  optimizer.weight_decay = 1;
  Cluster cluster(1, 1, optimizer);
  const std::vector<float> before = cluster.Flat();
  cluster.Step(1);
  const std::vector<float> after = cluster.Flat();
  const auto bias = static_cast<size_t>(cluster.layout->places()[1].offset);
  auto mean = [&](size_t at) {
    const auto flat = static_cast<std::int64_t>(at);
    return (Cluster::Gradient(1, 1, flat) + Cluster::Gradient(1, 0, flat) + Cluster::Gradient(1, 2, flat)) / 30;
  };
  CHECK(after[bias] == Approx(before[bias] - 0.01f * mean(bias)));
  CHECK(after[5] == Approx(0.99f * before[5] - 0.01f * mean(5)));
}

TEST_CASE("norms are those of the summed gradient over the parameters", "[ps]") {
  for (std::uint32_t servers : {1u, 3u}) {
    Cluster cluster(servers, 2);
    cluster.Stage(1);
    double expected = 0;
    for (std::int64_t i = 0; i < cluster.layout->parameter_floats(); ++i) {
      const float sum = Cluster::Gradient(1, 0, i) + Cluster::Gradient(1, 1, i) + Cluster::Gradient(1, 2, i);
      expected += static_cast<double>(sum) * sum;
    }
    double total = 0;
    const StageSlot slots[] = {StageSlot(0), StageSlot(1), StageSlot(2)};
    for (auto& shard : cluster.shards) {
      for (const BlockNorm& block : shard->Norms(slots)) total += block.squared_sum;
    }
    CHECK(total == Approx(expected).epsilon(1e-9));
  }
}

TEST_CASE("applying tells the squared sums of each update and of all, without statistics, where the place says so",
          "[ps]") {
  std::vector<std::vector<double>> first;
  for (std::uint32_t servers : {1u, 3u}) {
    for (int threads : {1, 2}) {
      Cluster cluster(servers, threads, AdamW(), true);
      Cluster plain(servers, threads);
      cluster.Step(1);
      plain.Step(1);
      CHECK(SameBits(cluster.Flat(), plain.Flat()));
      CHECK(plain.squared_sums[0].empty());
      std::vector<double> expected(4, 0.0), told(4, 0.0);
      for (std::size_t t = 0; t < cluster.layout->tensors().size(); ++t) {
        const TensorPlace& place = cluster.layout->places()[t];
        if (cluster.layout->tensors()[t].statistic) continue;
        for (std::int64_t i = place.offset; i < place.offset + place.count; ++i) {
          float sum = 0;
          for (std::size_t s = 0; s < 3; ++s) {
            const float gradient = Cluster::Gradient(1, std::array{1u, 0u, 2u}[s], i);
            expected[s] += static_cast<double>(gradient) * gradient;
            sum += gradient;
          }
          expected[3] += static_cast<double>(sum) * sum;
        }
      }
      for (const std::vector<double>& sums : cluster.squared_sums) {
        REQUIRE(sums.size() == 4);
        for (std::size_t i = 0; i < 4; ++i) told[i] += sums[i];
      }
      for (std::size_t i = 0; i < 4; ++i) CHECK(told[i] == Approx(expected[i]).epsilon(1e-6));
      if (threads == 1) first = cluster.squared_sums;
      CHECK(cluster.squared_sums == first);
    }
  }
}

// Writes the manifest of parts that were written, and opens it.
CheckpointReader Reopen(Storage& storage, const Cluster& cluster, Version version, std::vector<PartInfo> parts,
                        const OptimizerSpec& optimizer) {
  Manifest manifest;
  manifest.job_id = std::string(32, 'a');
  manifest.spec_hash = std::string(64, 'b');
  manifest.experiment_json = "{}";
  manifest.term = Term(1);
  manifest.version = version;
  manifest.seed = kSeed;
  manifest.tensors = cluster.layout->tensors();
  manifest.optimizer = optimizer;
  manifest.parameter_floats = cluster.layout->parameter_floats();
  manifest.total_floats = cluster.layout->total_floats();
  manifest.parts = std::move(parts);
  REQUIRE(WriteManifest(storage, "model", manifest).ok());
  auto reader = CheckpointReader::Open(storage, "model", version);
  INFO(reader.status().ToString());
  REQUIRE(reader.ok());
  return *std::move(reader);
}

TEST_CASE("a snapshot holds its version although commits go on, and restores onto other servers", "[ps]") {
  auto storage = MakeMemoryStorage();
  Cluster cluster(2, 2);
  for (std::uint64_t commit = 1; commit <= 3; ++commit) cluster.Step(commit);
  const std::vector<float> at_three = cluster.Flat();
  const std::string folder = CheckpointFolder("model", At(3));
  REQUIRE(storage->MakeFolder(folder).ok());
  for (auto& shard : cluster.shards) shard->BeginSnapshot();
  // One server's next commits come before the writer has copied anything, the other's beside it.
  std::vector<absl::StatusOr<PartInfo>> parts(2);
  cluster.Stage(4);
  cluster.shards[0]->Apply({.version = At(4), .samples = 30, .learning_rate = 0.01}, std::vector{StageSlot(0)});
  cluster.shards[0]->Apply({.version = At(5), .samples = 30, .learning_rate = 0.01}, std::vector{StageSlot(0)});
  std::thread writer([&] {
    for (std::uint32_t s = 0; s < 2; ++s) {
      parts[s] = cluster.shards[s]->WriteSnapshot(*storage, folder, PartFileName(ServerIndex(s), 2));
    }
  });
  for (std::uint64_t commit = 4; commit <= 8; ++commit) {
    cluster.shards[1]->Apply({.version = At(commit), .samples = 30, .learning_rate = 0.01}, std::vector{StageSlot(1)});
  }
  writer.join();
  REQUIRE(parts[0].ok());
  REQUIRE(parts[1].ok());
  CheckpointReader reader = Reopen(*storage, cluster, At(3), {*parts[0], *parts[1]}, AdamW());

  Cluster uninterrupted(2, 1);
  for (std::uint64_t commit = 1; commit <= 6; ++commit) uninterrupted.Step(commit);
  Cluster restored(3, 1);
  for (auto& shard : restored.shards) REQUIRE(shard->Restore(reader, At(3)).ok());
  CHECK(SameBits(restored.Flat(), at_three));
  for (std::uint64_t commit = 4; commit <= 6; ++commit) restored.Step(commit);
  CHECK(SameBits(restored.Flat(), uninterrupted.Flat()));  // the slots came back too

  // The next snapshot can begin.
  cluster.shards[0]->BeginSnapshot();
  CHECK(cluster.shards[0]->WriteSnapshot(*storage, folder, "again").ok());
}

TEST_CASE("a checkpoint of another model is refused with the tensor that differs", "[ps]") {
  auto storage = MakeMemoryStorage();
  Cluster cluster(1, 1);
  const std::string folder = CheckpointFolder("model", At(0));
  REQUIRE(storage->MakeFolder(folder).ok());
  cluster.shards[0]->BeginSnapshot();
  auto part = cluster.shards[0]->WriteSnapshot(*storage, folder, PartFileName(ServerIndex(0), 1));
  REQUIRE(part.ok());
  CheckpointReader reader = Reopen(*storage, cluster, At(0), {*part}, AdamW());
  std::vector<TensorSpec> other = Model();
  other[2].name = "c/weight";
  auto layout = std::make_shared<const ParameterLayout>(*ParameterLayout::Create(other, kBucketBytes, 1));
  auto shard = *Shard::Create({layout, ServerIndex(0), AdamW()}, cluster.pool);
  absl::Status status = shard->Restore(reader, At(0));
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("b/weight"));
}

TEST_CASE("a snapshot that cannot be written says so and lets the next begin", "[ps]") {
  auto storage = MakeMemoryStorage();
  Cluster cluster(1, 1);
  cluster.shards[0]->BeginSnapshot();
  REQUIRE_FALSE(cluster.shards[0]->WriteSnapshot(*storage, "no/such/folder", "part").ok());
  cluster.Step(1);
  REQUIRE(storage->MakeFolder("folder").ok());
  cluster.shards[0]->BeginSnapshot();
  CHECK(cluster.shards[0]->WriteSnapshot(*storage, "folder", "part").ok());
}

}  // namespace
}  // namespace evenkeel::ps
