#include "evaluator/score_state.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace evenkeel {
namespace {

Version At(std::uint64_t generation, std::uint64_t commit) {
  return Version{Generation(generation), CommitNumber(commit)};
}

Score ScoreOf(Version version, double accuracy) {
  Score score;
  score.version = version;
  score.metrics = {{"loss", 1 - accuracy}, {"accuracy", accuracy}};
  return score;
}

EvalConfig Config(std::int64_t patience = 0) {
  EvalConfig config;
  config.metrics = {"accuracy"};
  config.best_metric = "accuracy";
  config.best_maximize = true;
  if (patience > 0) config.early_stopping = EvalConfig::EarlyStopping{"accuracy", patience, 0.01, true};
  return config;
}

ScoreState Reloaded(const ScoreState& state, const EvalConfig& config) {
  std::unique_ptr<Storage> storage = MakeMemoryStorage();
  REQUIRE(storage->MakeFolder("/m").ok());
  REQUIRE(state.Save(*storage, "/m/eval_state.json").ok());
  absl::StatusOr<ScoreState> loaded = ScoreState::Load(*storage, "/m/eval_state.json");
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  loaded->Configure(config);
  return *std::move(loaded);
}

TEST_CASE("only a strictly better score is the best, also across a restart", "[evaluator]") {
  ScoreState state;
  state.Configure(Config());
  state.AdoptJob("a");
  CHECK(state.Record(ScoreOf(At(1, 10), 0.5)));
  CHECK_FALSE(state.Record(ScoreOf(At(1, 20), 0.5)));
  ScoreState again = Reloaded(state, Config());
  CHECK(again.Scored(At(1, 10)));
  CHECK(again.Scored(At(1, 20)));
  CHECK_FALSE(again.Scored(At(2, 20)));
  CHECK_FALSE(again.Record(ScoreOf(At(1, 30), 0.4)));
  CHECK(again.best()->version == At(1, 10));
  CHECK(again.Record(ScoreOf(At(2, 25), 0.6)));
  CHECK(again.best()->version == At(2, 25));
}

TEST_CASE("a score that is not a number is never the best and is kept as such", "[evaluator]") {
  ScoreState state;
  state.Configure(Config());
  CHECK_FALSE(state.Record(ScoreOf(At(1, 10), NAN)));
  ScoreState again = Reloaded(state, Config());
  CHECK_FALSE(again.best().has_value());
  CHECK(std::isnan(again.last()->metrics[1].second));
}

TEST_CASE("early stopping counts scores without an improvement of min_delta, across restarts", "[evaluator]") {
  ScoreState state;
  state.Configure(Config(2));
  state.Record(ScoreOf(At(1, 10), 0.50));
  state.Record(ScoreOf(At(1, 20), 0.505));  // less than min_delta: the best, yet no improvement
  CHECK_FALSE(state.StopReason().has_value());
  ScoreState again = Reloaded(state, Config(2));
  again.Record(ScoreOf(At(1, 30), 0.505));
  REQUIRE(again.StopReason().has_value());
  CHECK_THAT(*again.StopReason(), Catch::Contains("accuracy") && Catch::Contains("g1-c10"));
  again.Record(ScoreOf(At(1, 40), 0.6));
  CHECK_FALSE(again.StopReason().has_value());
}

TEST_CASE("another job's scores are forgotten", "[evaluator]") {
  ScoreState state;
  state.Configure(Config());
  CHECK_FALSE(state.AdoptJob("a"));
  state.Record(ScoreOf(At(1, 10), 0.5));
  CHECK_FALSE(state.AdoptJob("a"));
  CHECK(state.AdoptJob("b"));
  CHECK_FALSE(state.Scored(At(1, 10)));
  CHECK_FALSE(state.best().has_value());
}

TEST_CASE("the list of scored versions is bounded, and what falls off counts as scored", "[evaluator]") {
  ScoreState state;
  state.Configure(Config());
  for (std::uint64_t commit = 1; commit <= ScoreState::kScoredMax + 5; ++commit) {
    state.Record(ScoreOf(At(1, commit), 0.5));
  }
  ScoreState again = Reloaded(state, Config());
  CHECK(again.Scored(At(1, 1)));
  CHECK(again.Scored(At(1, ScoreState::kScoredMax + 5)));
  CHECK_FALSE(again.Scored(At(1, ScoreState::kScoredMax + 6)));
}

TEST_CASE("a best export that is gone is chosen anew, and one written before a crash counts", "[evaluator]") {
  ScoreState state;
  state.Configure(Config());
  state.AdoptJob("a");
  state.Record(ScoreOf(At(1, 10), 0.5));
  state.AdoptBest(BestScore{At(1, 20), "accuracy", 0.7, "a"});
  CHECK(state.best()->version == At(1, 20));
  state.AdoptBest(std::nullopt);
  CHECK_FALSE(state.best().has_value());
}

TEST_CASE("a damaged state is an error that names the file", "[evaluator]") {
  std::unique_ptr<Storage> storage = MakeMemoryStorage();
  REQUIRE(storage->MakeFolder("/m").ok());
  REQUIRE(storage->WriteAtomic("/m/eval_state.json", std::as_bytes(std::span("{", 1))).ok());
  const absl::Status status = ScoreState::Load(*storage, "/m/eval_state.json").status();
  CHECK(absl::IsDataLoss(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("/m/eval_state.json"));
}

}  // namespace
}  // namespace evenkeel
