// Conversations with workers: staging and pulling.
#include <functional>

#include "unit/ps/harness.h"

namespace evenkeel::ps {
namespace {

TEST_CASE("an update is reported staged once all its buckets and the closing message are here", "[ps]") {
  Conversation c;
  c.SetUp();
  c.Close(10, Update(10, 1));  // the closing message overtook the bucket
  auto acks = c.ToWorker<StageAck>(10);
  REQUIRE(acks.size() == 1);
  CHECK_FALSE(acks[0].complete);
  CHECK(acks[0].missing == std::vector<std::int32_t>{0});
  CHECK(c.ToChief<Staged>().empty());
  CHECK(c.Put(10, {.update = Update(10, 1), .bucket = 0}));
  auto staged = c.ToChief<Staged>();
  REQUIRE(staged.size() == 1);
  CHECK(staged[0].update == Update(10, 1));
  CHECK(staged[0].samples == 10);
  CHECK(staged[0].computed_on == At(0));
  CHECK(c.ToWorker<StageAck>(10).back().complete);
}

TEST_CASE("duplicates of a bucket are taken once, while it is written and afterwards", "[ps]") {
  Conversation c;
  c.SetUp();
  Stage stage{.update = Update(10, 1), .bucket = 0};
  auto write = c.Begin(10, stage);
  REQUIRE(write);
  CHECK_FALSE(c.Begin(10, stage));
  c.Take(c.server.EndStage(*write, true, c.now));
  CHECK_FALSE(c.Begin(10, stage));
  c.Close(10, Update(10, 1));
  c.Close(10, Update(10, 1));
  CHECK(c.ToChief<Staged>().size() == 1);
  CHECK(c.ToWorker<StageAck>(10).size() == 2);
  CHECK_FALSE(c.Begin(10, stage));
}

TEST_CASE("a bucket whose bytes did not come is missing as before", "[ps]") {
  Conversation c;
  c.SetUp();
  const Stage stage{.update = Update(10, 1), .bucket = 0};
  auto write = c.Begin(10, stage);
  REQUIRE(write);
  c.Close(10, Update(10, 1));
  c.Take(c.server.EndStage(*write, false, c.now));
  CHECK(c.ToChief<Staged>().empty());
  c.Close(10, Update(10, 1));
  CHECK(c.ToWorker<StageAck>(10).back().missing == std::vector<std::int32_t>{0});
  CHECK(c.Put(10, stage));
  CHECK(c.ToChief<Staged>().size() == 1);
}

TEST_CASE("a bucket that broke off after its worker's next stream had brought it again is asked for", "[ps]") {
  Conversation c;
  c.SetUp();
  const auto write = c.Begin(10, {.update = Update(10, 1), .bucket = 0});
  REQUIRE(write);
  c.WorkerSays(20, c.FromWorker(10), Hello{"worker:0"});
  StageAnswer again =
      c.server.BeginStage(SessionId(20), c.FromWorker(10), {.update = Update(10, 1), .bucket = 0}, 256, c.now);
  CHECK_FALSE(again.write);  // it is being written
  c.Take(std::move(again.actions));
  c.Take(c.server.EndStage(*write, false, c.now));
  REQUIRE(c.ToWorker<StageAck>(20).size() == 1);
  CHECK(c.ToWorker<StageAck>(20)[0].missing == std::vector<std::int32_t>{0});
}

TEST_CASE("a mean on a 16-bit wire has half the bytes and the samples of its update", "[ps]") {
  Conversation c;
  c.SetUp();
  Stage mean{.update = Update(10, 1), .bucket = 0};
  mean.mean_of = 10;
  CHECK_FALSE(c.Begin(10, mean, 256));
  CHECK(c.Refused(10) == RefuseReason::kMalformed);
  const auto write = c.Begin(10, mean, 128);
  REQUIRE(write);
  CHECK(write->mean_of == 10);
  c.Take(c.server.EndStage(*write, true, c.now));
  Stage closing{.update = Update(10, 1), .bucket = -1, .closing = true, .samples = 9, .feedback = 7};
  c.Put(10, closing, 0);
  CHECK(c.Refused(10) == RefuseReason::kMalformed);
  CHECK_THAT(c.ToWorker<Refuse>(10).back().message, Catch::Contains("covers 9 samples and 10"));
  CHECK(c.ToChief<Staged>().empty());
  closing.samples = 10;
  c.Put(10, closing, 0);
  REQUIRE(c.ToChief<Staged>().size() == 1);
  CHECK(c.ToChief<Staged>()[0].feedback == 7);
  mean.update = Update(10, 2);
  mean.mean_of = -1;
  CHECK_FALSE(c.Begin(10, mean, 128));
  CHECK(c.Refused(10) == RefuseReason::kMalformed);
}

TEST_CASE("a write that ends after its update was dropped does not count for the next", "[ps]") {
  Conversation c;
  c.SetUp();
  auto write = c.Begin(10, {.update = Update(10, 1), .bucket = 0});
  REQUIRE(write);
  c.Chief(Drop{{Update(10, 1)}});
  CHECK_FALSE(c.Put(10, {.update = Update(10, 2), .bucket = 0}));  // the slot is still being written
  CHECK(c.Refused(10) == RefuseReason::kRetry);
  c.Take(c.server.EndStage(*write, true, c.now));
  c.Close(10, Update(10, 2));
  CHECK(c.ToChief<Staged>().empty());
  CHECK(c.Put(10, {.update = Update(10, 2), .bucket = 0}));
  CHECK(c.ToChief<Staged>().size() == 1);
}

TEST_CASE("a late stage of a dropped update is refused, one of a decided update acknowledged", "[ps]") {
  Conversation c;
  c.SetUp();
  c.Chief(Drop{{Update(10, 1)}});
  CHECK_FALSE(c.Put(10, {.update = Update(10, 1), .bucket = 0}));
  CHECK(c.Refused(10) == RefuseReason::kStaleGeneration);  // no use in trying again
  CHECK(c.ToWorker<Refuse>(10).back().update == Update(10, 1));
  c.StageAll(10, Update(10, 2));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 2)}});
  c.Chief(c.Decide(1, 1, {Update(10, 2)}));
  c.Forget();
  CHECK_FALSE(c.Put(10, {.update = Update(10, 2), .bucket = 0}));
  c.Close(10, Update(10, 2));
  REQUIRE(c.ToWorker<StageAck>(10).size() == 1);
  CHECK(c.ToWorker<StageAck>(10)[0].complete);
  CHECK(c.ToChief<Staged>().empty());
}

TEST_CASE("a newer update replaces an incomplete one but waits for a complete one", "[ps]") {
  Conversation c;
  c.SetUp();
  c.Put(10, {.update = Update(10, 1), .bucket = 0});
  CHECK(c.Put(10, {.update = Update(10, 2), .bucket = 0}));
  CHECK_FALSE(c.Put(10, {.update = Update(10, 1), .bucket = 0}));  // a straggler
  c.Close(10, Update(10, 2));
  REQUIRE(c.ToChief<Staged>().size() == 1);
  CHECK(c.ToChief<Staged>()[0].update == Update(10, 2));
  c.Forget();
  CHECK_FALSE(c.Put(10, {.update = Update(10, 3), .bucket = 0}));
  CHECK(c.Refused(10) == RefuseReason::kRetry);
  c.Chief(Drop{{Update(10, 2)}});
  CHECK(c.Put(10, {.update = Update(10, 3), .bucket = 0}));
}

TEST_CASE("a higher attempt starts an incomplete update anew", "[ps]") {
  Conversation c;
  c.SetUp();
  c.Put(10, {.update = Update(10, 1), .attempt = 0, .bucket = 0});
  CHECK(c.Put(10, {.update = Update(10, 1), .attempt = 1, .bucket = 0}));
  CHECK_FALSE(c.Put(10, {.update = Update(10, 1), .attempt = 0, .bucket = 0}));
  c.Close(10, Update(10, 1), 1);
  CHECK(c.ToChief<Staged>().size() == 1);
}

TEST_CASE("what is stale, foreign or malformed is refused with its reason", "[ps]") {
  struct Row {
    const char* what;
    std::function<void(Envelope&, Stage&, std::size_t&)> change;
    RefuseReason reason;
  };
  const std::vector<Row> rows = {
      {"another job", [](Envelope& e, Stage&, std::size_t&) { e.job_id = std::string(32, 'c'); },
       RefuseReason::kForeignJob},
      {"another experiment", [](Envelope& e, Stage&, std::size_t&) { e.spec_hash = std::string(64, 'c'); },
       RefuseReason::kOtherExperiment},
      {"an old term", [](Envelope& e, Stage&, std::size_t&) { e.term = Term(1); }, RefuseReason::kStaleTerm},
      {"a term unheard of", [](Envelope& e, Stage&, std::size_t&) { e.term = Term(3); }, RefuseReason::kRetry},
      {"an update of an old term", [](Envelope&, Stage& s, std::size_t&) { s.update.term = Term(1); },
       RefuseReason::kStaleTerm},
      {"an old generation", [](Envelope& e, Stage&, std::size_t&) { e.generation = Generation(0); },
       RefuseReason::kStaleGeneration},
      {"a generation to come", [](Envelope& e, Stage&, std::size_t&) { e.generation = Generation(2); },
       RefuseReason::kRetry},
      {"an old layout", [](Envelope& e, Stage&, std::size_t&) { e.layout = LayoutNumber(0); },
       RefuseReason::kStaleLayout},
      {"another's update", [](Envelope&, Stage& s, std::size_t&) { s.update.incarnation = Incarnation(11); },
       RefuseReason::kMalformed},
      {"a bucket beyond", [](Envelope&, Stage& s, std::size_t&) { s.bucket = 1; }, RefuseReason::kMalformed},
      {"a payload too short", [](Envelope&, Stage&, std::size_t& n) { n = 252; }, RefuseReason::kMalformed},
  };
  for (const Row& row : rows) {
    INFO(row.what);
    Conversation c;
    c.term = 2;
    c.SetUp();
    Envelope envelope = c.FromWorker(10);
    Stage stage{.update = Update(10, 1, 2), .bucket = 0};
    std::size_t bytes = 256;
    row.change(envelope, stage, bytes);
    StageAnswer answer = c.server.BeginStage(SessionId(10), envelope, stage, bytes, c.now);
    CHECK_FALSE(answer.write);
    c.Take(std::move(answer.actions));
    CHECK(c.Refused(10) == row.reason);
    CHECK(c.ToChief<Staged>().empty());
  }
}

TEST_CASE("an unknown worker is told to retry while it may yet be admitted, a dead one that it is stale", "[ps]") {
  Conversation c;
  c.SetUp();
  c.Worker(12, Hello{"worker:2"});  // connects before the chief has named it
  REQUIRE(c.ToWorker<HelloAck>(12).size() == 1);
  CHECK_FALSE(c.Put(12, {.update = Update(12, 1), .bucket = 0}));
  CHECK(c.Refused(12) == RefuseReason::kRetry);
  c.Chief(Members{MembershipEpoch(3), false, {{Incarnation(12), "worker:2"}}, {}});
  CHECK(c.Put(12, {.update = Update(12, 1), .bucket = 0}));

  c.Worker(5, Hello{"worker:3"});
  CHECK_FALSE(c.Put(5, {.update = Update(5, 1), .bucket = 0}));
  CHECK(c.Refused(5) == RefuseReason::kStaleIncarnation);

  c.Chief(Members{MembershipEpoch(4), false, {}, {Incarnation(12)}});
  CHECK(c.closed == std::vector<std::uint64_t>{12});
  CHECK_FALSE(c.Put(12, {.update = Update(12, 1), .bucket = 0}));
  CHECK(c.Refused(12) == RefuseReason::kStaleIncarnation);
  c.Worker(13, Hello{"worker:2"});
  Envelope zombie = c.FromWorker(12);
  c.WorkerSays(14, zombie, Hello{"worker:2"});
  CHECK(c.Refused(14) == RefuseReason::kStaleIncarnation);
}

TEST_CASE("a worker's new stream takes the place of its former one", "[ps]") {
  Conversation c;
  c.SetUp();
  c.Worker(10, Pull{.request = 1, .at_least = At(5), .deadline_ms = 1000});
  c.WorkerSays(20, c.FromWorker(10), Hello{"worker:0"});
  CHECK(c.closed == std::vector<std::uint64_t>{10});
  c.now += std::chrono::seconds(2);
  c.Take(c.server.Tick(c.now));
  CHECK(c.ToWorker<Refuse>(10).empty());  // its pull went with it
  c.WorkerSays(20, c.FromWorker(10), Pull{.request = 2, .at_least = At(0)});
  CHECK(c.served == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{20, 2}});
}

TEST_CASE("a pull is served at once, when its version is published, or refused at its deadline", "[ps]") {
  Conversation c;
  c.SetUp();
  using Served = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  c.Worker(10, Pull{.request = 1, .at_least = At(0), .deadline_ms = 1000});
  CHECK(c.served == Served{{10, 1}});
  c.Worker(10, Pull{.request = 2, .at_least = At(1), .deadline_ms = 1000});
  c.Worker(11, Pull{.request = 7, .at_least = At(2), .deadline_ms = 5000});
  CHECK(c.served.size() == 1);
  CHECK(c.server.NextDeadline() == c.now + std::chrono::seconds(1));
  c.StageAll(10, Update(10, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  c.Chief(c.Decide(1, 1, {Update(10, 1)}));
  CHECK(c.served == Served{{10, 1}, {10, 2}});
  c.now += std::chrono::seconds(5);
  c.Take(c.server.Tick(c.now));
  CHECK(c.Refused(11) == RefuseReason::kRetry);
  CHECK(c.server.NextDeadline() == kNever);
  c.Worker(11, Pull{.request = 8, .at_least = At(0, 0), .deadline_ms = 1000});
  CHECK(c.Refused(11) == RefuseReason::kStaleGeneration);
}

TEST_CASE("a worker that comes before the parameters is told to retry", "[ps]") {
  Conversation c;
  c.Worker(10, Hello{"worker:0"});
  CHECK(c.Refused(10) == RefuseReason::kRetry);
  CHECK(c.closed == std::vector<std::uint64_t>{10});
}

}  // namespace
}  // namespace evenkeel::ps
