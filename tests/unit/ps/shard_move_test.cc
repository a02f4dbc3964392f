// Stripes and slots of one layout filled into the memories of another.
#include "unit/ps/shards.h"

namespace evenkeel::ps {
namespace {

// Every fresh shard takes each piece from where the plan says.
void Move(const Cluster& from, Cluster& to, Version version) {
  for (auto& shard : to.shards) {
    shard->BeginMove();
    const auto plan = Shard::PlanMove(*from.layout, shard->place());
    REQUIRE(plan.size() == from.shards.size());
    for (std::size_t source = 0; source < plan.size(); ++source) {
      for (const Shard::MovePiece& piece : plan[source]) {
        const auto here = from.shards[source]->Range(piece.array, piece.begin, piece.end);
        INFO(here.status().ToString());
        REQUIRE(here.ok());
        const auto there = shard->MoveInto(piece.array, piece.begin, piece.end);
        INFO(there.status().ToString());
        REQUIRE(there.ok());
        REQUIRE(here->size() == there->size());
        std::copy(here->begin(), here->end(), there->begin());
      }
    }
    shard->FinishMove(version);
  }
}

Cluster Fresh(std::uint32_t servers, const OptimizerSpec& optimizer) { return Cluster(servers, 1, optimizer); }

OptimizerSpec Momentum() {
  OptimizerSpec optimizer;
  optimizer.kind = OptimizerSpec::Kind::kMomentum;
  return optimizer;
}

}  // namespace

TEST_CASE("a move between layouts keeps every bit of parameters, statistics and slots", "[ps]") {
  for (const OptimizerSpec& optimizer : {AdamW(), Momentum(), OptimizerSpec{}}) {
    Cluster whole(1, 1, optimizer);
    for (std::uint64_t commit = 1; commit <= 6; ++commit) whole.Step(commit);
    const std::vector<float> expected = whole.Flat();
    for (auto [before, after] : {std::pair(1u, 2u), std::pair(2u, 1u), std::pair(3u, 2u), std::pair(2u, 3u),
                                 std::pair(2u, 2u), std::pair(5u, 1u), std::pair(1u, 40u)}) {
      INFO(before << " -> " << after << " servers");
      Cluster former = Fresh(before, optimizer);
      for (std::uint64_t commit = 1; commit <= 3; ++commit) former.Step(commit);
      Cluster next = Fresh(after, optimizer);
      Move(former, next, At(3));
      CHECK(SameBits(next.Flat(), former.Flat()));
      for (auto& shard : next.shards) CHECK(shard->Newest().version == At(3));
      for (std::uint64_t commit = 4; commit <= 6; ++commit) next.Step(commit);
      CHECK(SameBits(next.Flat(), expected));  // the slots came along
    }
  }
}

TEST_CASE("a plan asks for every float once and never for a statistic's slots", "[ps]") {
  Cluster from(3, 1), to(2, 1);
  const ParameterLayout& layout = *from.layout;
  const auto total = static_cast<std::size_t>(layout.total_floats());
  std::vector<std::vector<int>> asked(3, std::vector<int>(total));  // by array: parameters, two slots
  for (auto& shard : to.shards) {
    const auto plan = Shard::PlanMove(layout, shard->place());
    for (std::size_t source = 0; source < plan.size(); ++source) {
      for (const Shard::MovePiece& piece : plan[source]) {
        REQUIRE(piece.array < 3);
        REQUIRE(piece.begin < piece.end);
        for (std::int64_t at = piece.begin; at < piece.end; ++at) {
          ++asked[piece.array][static_cast<std::size_t>(at)];
        }
      }
    }
  }
  for (const Bucket& bucket : layout.buckets()) {
    for (std::int64_t at = bucket.begin; at < bucket.end; ++at) {
      const auto place = static_cast<std::size_t>(at);
      REQUIRE(asked[0][place] == 1);
      REQUIRE(asked[1][place] == (bucket.statistic ? 0 : 1));
      REQUIRE(asked[2][place] == (bucket.statistic ? 0 : 1));
    }
  }
}

TEST_CASE("floats that a server does not hold are an error that names them", "[ps]") {
  Cluster cluster(2, 1);
  const Shard& shard = *cluster.shards[0];
  const Stripe& foreign = cluster.layout->StripeOf(0, ServerIndex(1));
  const Stripe& own = cluster.layout->StripeOf(0, ServerIndex(0));
  REQUIRE(shard.Range(0, own.begin, own.end).ok());
  const std::size_t last = cluster.layout->buckets().size() - 1;
  const Stripe& statistic = cluster.layout->StripeOf(static_cast<int>(last), ServerIndex(0));
  REQUIRE(cluster.layout->buckets()[last].statistic);
  REQUIRE(shard.Range(0, statistic.begin, statistic.end).ok());
  struct Row {
    std::uint32_t array;
    std::int64_t begin, end;
  };
  for (const Row& row : {Row{0, foreign.begin, foreign.end}, Row{0, own.begin, own.end + 1},
                         Row{0, own.begin, own.begin}, Row{0, own.end, own.begin}, Row{3, own.begin, own.end},
                         Row{0, -1, 1}, Row{1, statistic.begin, statistic.end}}) {
    const auto range = shard.Range(row.array, row.begin, row.end);
    INFO(row.array << " [" << row.begin << "," << row.end << ")");
    REQUIRE(range.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(range.status().message()), Catch::Matchers::Contains(std::to_string(row.begin)));
  }
}

}  // namespace evenkeel::ps
