#include "replay/history.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/digest.h"

namespace evenkeel::replay {
namespace {

Version At(std::uint64_t generation, std::uint64_t commit) { return {Generation(generation), CommitNumber(commit)}; }

// Writes a log as a chief does: decisions are numbered and chained by itself.
class Log {
 public:
  Log() { REQUIRE(storage_->MakeFolder("m").ok()); }

  Log& StartTerm(std::uint64_t term, const std::string& spec = "spec") {
    Flush();
    bytes_.clear();
    term_ = Term(term);
    return Add(TermRecord{.term = term_, .job_id = "job", .spec_hash = spec});
  }
  Log& Add(const LogRecord& record) {
    bytes_ += EncodeLogRecord(record);
    return *this;
  }
  Log& Admit(std::uint64_t incarnation) {
    return Add(AdmissionRecord{.incarnation = Incarnation(incarnation),
                               .name = "w",
                               .rank = Rank(static_cast<std::uint32_t>(incarnation)),
                               .compute_fingerprint = absl::StrCat("fingerprint ", incarnation)});
  }
  // The next positions of the epoch, by default computed on the version before.
  CommittedUpdate Update(std::uint64_t incarnation, PositionRange positions, std::int64_t clock = 0) {
    CommittedUpdate update;
    update.update = UpdateId{term_, Incarnation(incarnation), ++sequence_};
    update.rank = Rank(static_cast<std::uint32_t>(incarnation));
    update.positions = {positions};
    update.clock = clock;
    update.bound_at = tip_.commit;
    update.computed_on = {tip_};
    return update;
  }
  Decision Next(std::vector<CommittedUpdate> updates) {
    Decision decision{.version = {tip_.generation, tip_.commit.Next()}};
    for (const CommittedUpdate& update : updates) decision.samples += TotalSize(update.positions);
    decision.updates = std::move(updates);
    decision.previous_hash = hash_;
    return decision;
  }
  Log& Commit(Decision decision) {
    decision.hash = hash_ = HashDecision(decision);
    tip_ = decision.version;
    return Add(CommitRecord{decision});
  }
  Log& Commit(PositionRange positions, std::int64_t clock = 0) { return Commit(Next({Update(1, positions, clock)})); }
  // The chief goes on after this version.
  Log& GoTo(Version version, std::uint64_t hash) {
    tip_ = version;
    hash_ = hash;
    return *this;
  }
  std::uint64_t hash() const { return hash_; }

  absl::StatusOr<History> Read() {
    Flush();
    return ReadHistory(*storage_, "m");
  }
  History MustRead() {
    auto history = Read();
    INFO(history.status());
    REQUIRE(history.ok());
    return *std::move(history);
  }

 private:
  void Flush() {
    if (bytes_.empty()) return;
    REQUIRE(storage_->WriteAtomic(JoinPath("m", LogFileName(term_)), AsBytes(bytes_)).ok());
  }

  std::unique_ptr<Storage> storage_ = MakeMemoryStorage();
  Term term_;
  std::string bytes_;  // of this term
  Version tip_ = At(1, 0);
  std::uint64_t hash_ = 0;
  std::uint64_t sequence_ = 0;
};

std::vector<std::int64_t> Begins(const History& history) {
  std::vector<std::int64_t> begins;
  for (const LineCommit& commit : history.line) {
    begins.push_back(commit.decision.updates.front().positions.front().begin);
  }
  return begins;
}

TEST_CASE("what was rolled back is not on the line", "[replay]") {
  Log log;
  log.StartTerm(1, "first").Admit(1).Commit({0, 10});
  const std::uint64_t hash = log.Commit({10, 20}).hash();
  log.Commit({20, 30}).Commit({30, 40});
  log.StartTerm(2, "second").Add(RollbackRecord{Generation(2), At(1, 2)}).GoTo(At(2, 2), hash).Admit(2);
  log.Commit({25, 40});
  const History history = log.MustRead();
  CHECK(Begins(history) == std::vector<std::int64_t>{0, 10, 25});
  CHECK(history.rolled_back == 2);
  CHECK(history.last() == CommitNumber(3));
  CHECK(history.Holds(At(1, 2)));
  CHECK(history.Holds(At(2, 2)));  // what the second generation began with
  CHECK(history.Holds(At(2, 3)));
  CHECK_FALSE(history.Holds(At(1, 3)));
  CHECK_FALSE(history.Holds(At(2, 1)));
  CHECK(history.spec_hashes[history.line[1].spec] == "first");
  CHECK(history.spec_hashes[history.line[2].spec] == "second");
  CHECK(CheckLine(history).empty());
}

TEST_CASE("a rollback to the start leaves nothing", "[replay]") {
  Log log;
  log.StartTerm(1).Commit({0, 10}).Commit({10, 20}).Add(RollbackRecord{Generation(2), Version{}});
  CHECK(log.MustRead().line.empty());
}

TEST_CASE("a chief that goes on in the same generation outdoes what its predecessor logged in vain", "[replay]") {
  Log log;
  log.StartTerm(1).Commit({0, 10});
  const std::uint64_t hash = log.Commit({10, 20}).hash();
  log.Commit({20, 30}).Commit({30, 40});
  log.StartTerm(2).GoTo(At(1, 2), hash).Commit({22, 30}).Commit({30, 33});
  const History history = log.MustRead();
  CHECK(Begins(history) == std::vector<std::int64_t>{0, 10, 22, 30});
  CHECK(history.rolled_back == 2);
  CHECK(CheckLine(history).empty());
}

TEST_CASE("a decision that a new chief logs again counts once", "[replay]") {
  Log log;
  log.StartTerm(1).Commit({0, 10});
  const std::uint64_t hash = log.hash();
  const Decision second = log.Next({log.Update(1, {10, 20})});
  log.Commit(second);
  log.StartTerm(2).GoTo(At(1, 1), hash).Commit(second).Commit({20, 30});
  const History history = log.MustRead();
  CHECK(Begins(history) == std::vector<std::int64_t>{0, 10, 20});
  CHECK(history.rolled_back == 0);
}

TEST_CASE("a job that starts anew without a checkpoint begins the line anew", "[replay]") {
  Log log;
  log.StartTerm(1).Commit({0, 10}).Commit({10, 20});
  log.StartTerm(2).GoTo(At(2, 0), 0).Commit({5, 10});
  const History history = log.MustRead();
  CHECK(Begins(history) == std::vector<std::int64_t>{5});
  CHECK(CheckLine(history).empty());
}

TEST_CASE("a log without its beginning begins at the checkpoint it went on from", "[replay]") {
  Log log;
  log.StartTerm(3).Add(RollbackRecord{Generation(3), At(1, 40)}).GoTo(At(3, 40), 77).Commit({0, 10});
  const History history = log.MustRead();
  CHECK(history.base == At(1, 40));
  CHECK(history.at(CommitNumber(41)).decision.version == At(3, 41));
  CHECK(history.Holds(At(1, 40)));
  CHECK(CheckLine(history).empty());
}

TEST_CASE("records that make no line are data loss, with their file", "[replay]") {
  Log gap;
  gap.StartTerm(1).Commit({0, 10}).GoTo(At(1, 2), gap.hash()).Commit({20, 30});
  CHECK(gap.Read().status().code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(gap.Read().status().message()), Catch::Contains("chief.wal.1"));
  Log twice;  // within one term nothing is undone without a rollback
  twice.StartTerm(1).Commit({0, 10});
  twice.Commit({10, 20}).GoTo(At(1, 0), 0).Commit({0, 11});
  CHECK(twice.Read().status().code() == absl::StatusCode::kDataLoss);
}

TEST_CASE("an empty folder has no log", "[replay]") {
  const std::unique_ptr<Storage> storage = MakeMemoryStorage();
  REQUIRE(storage->MakeFolder("m").ok());
  CHECK(ReadHistory(*storage, "m").status().code() == absl::StatusCode::kNotFound);
  CHECK(ReadHistory(*storage, "elsewhere").status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("each contradiction of a commit is found", "[replay]") {
  struct Row {
    std::string says;
    std::function<void(Decision&)> change;
    bool rehash = true;
    bool blocks = false;
  };
  const std::vector<Row> rows = {
      {"hash does not match", [](Decision& d) { d.learning_rate = 2; }, false},
      {"chained to hash", [](Decision& d) { d.previous_hash += 1; }},
      {"samples", [](Decision& d) { d.samples += 1; }},
      {"is no earlier state", [](Decision& d) { d.updates[1].computed_on = {At(1, 2)}; }, true, true},
      {"is no earlier state", [](Decision& d) { d.updates[1].computed_on = {At(4, 1)}; }, true, true},
      {"versions of 2 servers",
       [](Decision& d) {
         d.updates[0].computed_on = {At(1, 1), At(1, 1)};
       }},
      {"follows one of rank", [](Decision& d) { std::swap(d.updates[0], d.updates[1]); }},
  };
  for (const Row& row : rows) {
    INFO(row.says);
    Log log;
    log.StartTerm(1).Add(LayoutRecord{LayoutNumber(1), Generation(1), {{"a:1", Incarnation(9)}}}).Commit({0, 10});
    Decision decision = log.Next({log.Update(1, {10, 20}), log.Update(2, {20, 25})});
    decision.hash = HashDecision(decision);
    row.change(decision);
    if (row.rehash) {
      log.Commit(decision);
    } else {
      log.Add(CommitRecord{decision});
    }
    const std::vector<Finding> findings = CheckLine(log.MustRead());
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].commit == CommitNumber(2));
    CHECK(findings[0].blocks == row.blocks);
    CHECK_THAT(findings[0].text, Catch::Contains(row.says));
  }
}

TEST_CASE("a sample that counts twice or never is found", "[replay]") {
  Log log;
  log.StartTerm(1).Commit({0, 30}).Commit({40, 100});
  SECTION("whole") {
    const PositionsChecked checked = CheckPositions(log.Commit({30, 40}).MustRead(), 100, 1);
    CHECK(checked.findings.empty());
    CHECK(checked.epochs_complete == 1);
  }
  SECTION("twice") {
    const PositionsChecked checked = CheckPositions(log.Commit({29, 40}).MustRead(), 100, 1);
    REQUIRE(checked.findings.size() == 1);
    CHECK(checked.findings[0].commit == CommitNumber(3));
    CHECK_THAT(checked.findings[0].text, Catch::Contains("count twice, here and in commit 1"));
  }
  SECTION("outside") {
    const PositionsChecked checked = CheckPositions(log.Commit({30, 40}).Commit({100, 101}).MustRead(), 100, 1);
    REQUIRE(checked.findings.size() == 1);
    CHECK(checked.findings[0].commit == CommitNumber(4));
    CHECK(checked.findings[0].blocks);
  }
  SECTION("never, once the epoch is over") {
    CHECK(CheckPositions(log.MustRead(), 100, 1).findings.empty());  // still open
    Decision next = log.Next({log.Update(1, {0, 1})});
    next.updates[0].epoch = Epoch(1);
    const History history = log.Commit(next).MustRead();
    CHECK(CheckPositions(history, 100, 2).findings.empty());  // two may be open
    const PositionsChecked checked = CheckPositions(history, 100, 1);
    REQUIRE(checked.findings.size() == 1);
    CHECK_THAT(checked.findings[0].text, Catch::Contains("epoch 0 is over, but 10 of its samples never counted"));
  }
}

TEST_CASE("members and their clocks outlive the chief", "[replay][regressions]") {
  Log log;
  log.StartTerm(1).Admit(1);
  for (std::int64_t clock = 1; clock <= 8; ++clock) log.Commit({10 * clock - 10, 10 * clock}, clock);
  log.StartTerm(2).Admit(2);  // its clock starts at the other's 8, not at 0
  log.Commit({80, 90}, 9);
  CHECK(log.MustRead().line.back().lead == 0);
}

TEST_CASE("how far ahead of the slowest a ticket was bound follows from the log", "[replay]") {
  Log log;
  log.StartTerm(1).Admit(1).Admit(2);
  log.Commit({0, 1}, 1).Commit({1, 2}, 2);
  CHECK(log.MustRead().line.back().lead == 1);  // bound when it had committed 1, the other none
  SECTION("a joiner begins at the slowest's clock") {
    log.Admit(3).Commit({2, 3}, 3).Commit(log.Next({log.Update(3, {3, 4}, 1)}));
    CHECK(log.MustRead().line[2].lead == 2);
    CHECK(log.MustRead().line[3].lead == 0);
  }
  SECTION("who is fenced holds nobody back") {
    log.Add(FenceRecord{.incarnation = Incarnation(2)}).Commit({2, 3}, 3);
    CHECK(log.MustRead().line[2].lead == 0);
  }
  SECTION("after a rollback clocks go on") {
    log.Add(RollbackRecord{Generation(2), At(1, 0)}).GoTo(At(2, 0), 0).Commit({0, 1}, 3);
    CHECK(log.MustRead().line[0].lead == 2);
  }
}

}  // namespace
}  // namespace evenkeel::replay
