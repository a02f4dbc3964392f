// A server between layouts: a place is prepared beside the one that rules, then takes its place.
#include "unit/ps/harness.h"

namespace evenkeel::ps {
namespace {

using Catch::Matchers::Contains;

// Place `server` of two in layout `number`, to be filled from the one server of the layout that rules.
Prepare ToTwo(std::uint64_t number, std::uint32_t server = 0) {
  Prepare prepare;
  prepare.layout = LayoutNumber(number);
  prepare.server = ServerIndex(server);
  prepare.servers = 2;
  prepare.tensors = SmallModel();
  prepare.bucket_bytes = 4 << 20;
  prepare.sources = {ServerAddress{.address = "here:1", .name = "ps:0"}};
  return prepare;
}

// At version 1 in layout 1, as its only server.
void Train(Conversation& c) {
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  c.Chief(c.Decide(1, 1, {Update(10, 1)}));
  REQUIRE(c.server.published() == At(1));
  c.Forget();
}

void PrepareAndFill(Conversation& c) {
  c.Chief(ToTwo(2));
  c.Chief(Fill{LayoutNumber(2), At(1)});
  REQUIRE(c.ToChief<Filled>() == std::vector<Filled>{{LayoutNumber(2), ""}});
}

}  // namespace

TEST_CASE("a server says how many pieces of what it fills have come", "[ps]") {
  Conversation c;
  Train(c);
  c.Chief(ToTwo(2));
  const std::uint64_t number = c.Done<PreparePlace>().at(0).number;
  CHECK(c.server.State(c.now).filled_pieces == 0);
  c.Take(c.server.OnPiece(number, c.now));
  c.Take(c.server.OnPiece(number + 1, c.now));  // another preparation's
  CHECK(c.server.State(c.now).filled_pieces == 1);
  c.Chief(ToTwo(3));
  CHECK(c.server.State(c.now).filled_pieces == 0);
}

TEST_CASE("a filled place rules from the switch on, with the chain of decisions", "[ps]") {
  Conversation c;
  Train(c);
  c.Chief(ToTwo(2));
  REQUIRE(c.Done<PreparePlace>().size() == 1);
  const PreparePlace place = c.Done<PreparePlace>()[0];
  CHECK(place.own == ServerIndex(0));  // it copies what it holds itself
  CHECK(place.place.layout->servers() == 2);
  CHECK(place.from->servers() == 1);
  CHECK(place.envelope.layout == LayoutNumber(1));  // what the sources rule by
  REQUIRE(c.ToChief<Prepared>() == std::vector<Prepared>{{LayoutNumber(2), ""}});
  CHECK(c.Done<FillPlace>().empty());
  c.Chief(Fill{LayoutNumber(2), At(1)});
  REQUIRE(c.Done<FillPlace>().size() == 1);
  CHECK(c.Done<FillPlace>()[0].version == At(1));
  REQUIRE(c.ToChief<Filled>() == std::vector<Filled>{{LayoutNumber(2), ""}});
  c.Chief(Fill{LayoutNumber(2), At(1)});  // again: answered from memory
  CHECK(c.Done<FillPlace>().size() == 1);
  CHECK(c.ToChief<Filled>().size() == 2);
  c.Worker(10, Pull{.request = 1, .at_least = At(1), .deadline_ms = 1000});
  CHECK(c.served.size() == 1);  // meanwhile the former place serves

  c.layout = 2;
  c.Chief(Switch{At(1)});
  REQUIRE(c.Done<AdoptPrepared>().size() == 1);
  CHECK(c.Done<AdoptPrepared>()[0].version == At(1));
  REQUIRE(c.ToChief<Configured>().size() == 1);
  CHECK(c.ToChief<Configured>()[0].owned_floats == 32);
  CHECK(c.server.published() == At(1));
  CHECK(c.server.Holds().decided == At(1));
  CHECK(c.server.kept_decisions().size() == 1);
  c.Chief(Switch{At(1)});  // again
  CHECK(c.Done<AdoptPrepared>().size() == 1);
  CHECK(c.ToChief<Configured>().size() == 2);

  c.Chief(Members{MembershipEpoch(3), true, {{Incarnation(10), "worker:0"}}, {}});
  c.Put(10, {.update = Update(10, 2), .bucket = 0}, 128);
  c.Close(10, Update(10, 2));
  c.Chief(Seal{SetNumber(2), 0, {Update(10, 2)}});
  c.Chief(c.Decide(2, 2, {Update(10, 2)}));  // the hash goes on from before the move
  CHECK_FALSE(c.finished);
  CHECK(c.server.published() == At(2));
}

TEST_CASE("a server without a place prepares one from the others and takes up work at the switch", "[ps]") {
  Conversation c;
  c.Chief(Welcome{.incarnation = Incarnation(2), .job_id = kJob, .renew_ms = 1000});
  c.Chief(ToTwo(2, 1));
  REQUIRE(c.Done<PreparePlace>().size() == 1);
  CHECK_FALSE(c.Done<PreparePlace>()[0].own);
  c.Chief(Fill{LayoutNumber(2), At(1)});
  c.layout = 2;
  c.Chief(Switch{At(1)});
  CHECK(c.server.published() == At(1));
  CHECK(c.ToChief<Configured>().size() == 1);
}

TEST_CASE("workers may connect to a server that makes ready, and keep their streams through the switch", "[ps]") {
  Conversation c;
  c.Chief(Welcome{.incarnation = Incarnation(2), .job_id = kJob, .renew_ms = 1000});
  c.Worker(10, Hello{"worker:0"});
  CHECK(c.Refused(10) == RefuseReason::kRetry);
  c.Chief(ToTwo(2, 1));
  c.Worker(10, Hello{"worker:0"});
  REQUIRE(c.ToWorker<HelloAck>(10).size() == 1);
  c.Forget();
  c.Worker(10, Pull{.request = 1, .at_least = At(1), .deadline_ms = 1000});
  CHECK(c.Refused(10) == RefuseReason::kRetry);
  CHECK_FALSE(c.Put(10, {.update = Update(10, 1), .bucket = 0}));
  c.Chief(Fill{LayoutNumber(2), At(1)});
  c.layout = 2;
  c.Chief(Switch{At(1)});
  c.Chief(Members{MembershipEpoch(2), true, {{Incarnation(10), "worker:0"}}, {}});
  CHECK(c.served.empty());
  c.Worker(10, Pull{.request = 2, .at_least = At(1), .deadline_ms = 1000});
  CHECK(c.served.size() == 1);
  CHECK(c.Put(10, {.update = Update(10, 1), .bucket = 0}, 128));
}

TEST_CASE("workers of the former layout are told to come again", "[ps]") {
  Conversation c;
  Train(c);
  PrepareAndFill(c);
  c.layout = 2;
  c.Chief(Switch{At(1)});
  c.Forget();
  c.layout = 1;
  c.Worker(10, Pull{.request = 1, .at_least = At(1), .deadline_ms = 1000});
  CHECK(c.served.empty());
  CHECK(c.Refused(10) == RefuseReason::kStaleLayout);
  CHECK_FALSE(c.Put(10, {.update = Update(10, 2), .bucket = 0}));
}

TEST_CASE("an order to prepare that comes twice is carried out once, another one takes its place", "[ps]") {
  Conversation c;
  Train(c);
  c.hold_memory = true;
  c.Chief(ToTwo(2));
  c.Chief(ToTwo(2));
  CHECK(c.memory.size() == 1);
  c.DoMemory();
  CHECK(c.ToChief<Prepared>().size() == 1);
  c.Chief(ToTwo(2));  // answered from memory
  CHECK(c.memory.empty());
  CHECK(c.ToChief<Prepared>().size() == 2);
  c.hold_memory = false;
  c.Chief(ToTwo(3, 1));
  REQUIRE(c.Done<DropPrepared>().size() == 1);
  CHECK(c.Done<DropPrepared>()[0].number == c.Done<PreparePlace>()[0].number);
  REQUIRE(c.Done<PreparePlace>().size() == 2);
  CHECK(c.Done<PreparePlace>()[1].number != c.Done<PreparePlace>()[0].number);
  CHECK(c.ToChief<Prepared>().back() == Prepared{LayoutNumber(3), ""});
}

TEST_CASE("what was prepared is dropped when the layout is given up, and its late answer means nothing", "[ps]") {
  Conversation c;
  Train(c);
  c.hold_memory = true;
  c.Chief(ToTwo(2));
  const std::uint64_t number = std::get<PreparePlace>(c.memory.at(0)).number;
  c.Chief(Abandon{LayoutNumber(2)});
  REQUIRE(c.memory.size() == 2);
  CHECK(std::get<DropPrepared>(c.memory[1]).number == number);
  c.hold_memory = false;
  c.DoMemory();
  CHECK(c.ToChief<Prepared>().empty());
  c.StageAll(10, Update(10, 2));  // the layout that ruled goes on
  c.Chief(Seal{SetNumber(2), 0, {Update(10, 2)}});
  c.Chief(c.Decide(2, 2, {Update(10, 2)}));
  CHECK(c.server.published() == At(2));
}

TEST_CASE("what cannot be prepared is the chief's to judge", "[ps]") {
  Conversation c;
  Train(c);
  c.prepared = absl::ResourceExhaustedError("256 MiB are not to be had");
  c.Chief(ToTwo(2));
  REQUIRE(c.ToChief<Prepared>().size() == 1);
  CHECK_THAT(c.ToChief<Prepared>()[0].error, Contains("256 MiB"));
  CHECK(c.Done<DropPrepared>().size() == 1);
  c.prepared = absl::OkStatus();
  c.Chief(ToTwo(4, 2));  // no such place
  REQUIRE(c.ToChief<Prepared>().size() == 2);
  CHECK_THAT(c.ToChief<Prepared>()[1].error, Contains("place 2 of 2"));
  CHECK(c.Done<PreparePlace>().size() == 1);
  CHECK_FALSE(c.finished);
}

TEST_CASE("training goes on between an order to prepare and the one to fill", "[ps]") {
  Conversation c;
  Train(c);
  c.Chief(ToTwo(2));
  c.StageAll(10, Update(10, 2));
  c.Chief(Seal{SetNumber(2), 0, {Update(10, 2)}});
  c.Chief(c.Decide(2, 2, {Update(10, 2)}));
  REQUIRE(c.server.published() == At(2));
  c.Chief(Fill{LayoutNumber(2), At(2)});
  REQUIRE(c.ToChief<Filled>() == std::vector<Filled>{{LayoutNumber(2), ""}});
  c.layout = 2;
  c.Chief(Switch{At(2)});
  CHECK(c.server.published() == At(2));
  CHECK_FALSE(c.finished);
}

TEST_CASE("what cannot be filled is the chief's to judge", "[ps]") {
  Conversation c;
  Train(c);
  const std::uint64_t layout = 2;
  std::string why;
  SECTION("it was not prepared") { why = "not prepared"; }
  SECTION("its memory is not there yet") {
    c.hold_memory = true;
    c.Chief(ToTwo(layout));
    why = "not prepared";
  }
  SECTION("it does not hold that version") {
    c.Chief(ToTwo(layout));
    why = "g1.c1, not g1.c7";
  }
  SECTION("others do not give what they hold") {
    c.filled = absl::UnavailableError("the stream to ps:1 broke");
    c.Chief(ToTwo(layout));
    why = "ps:1 broke";
  }
  c.Chief(Fill{LayoutNumber(layout), c.filled.ok() && why != "not prepared" ? At(7) : At(1)});
  REQUIRE(c.ToChief<Filled>().size() == 1);
  CHECK_THAT(c.ToChief<Filled>()[0].error, Contains(why));
  CHECK_FALSE(c.finished);
}

TEST_CASE("orders of a layout that is over are ignored", "[ps]") {
  Conversation c;
  Train(c);
  PrepareAndFill(c);
  c.layout = 2;
  c.Chief(Switch{At(1)});
  c.Forget();
  c.layout = 1;
  c.Chief(ToTwo(2));
  c.Chief(Fill{LayoutNumber(2), At(1)});
  c.Chief(Switch{At(1)});
  CHECK(c.done.empty());
  CHECK(c.ToChief<Prepared>().empty());
  CHECK(c.ToChief<Filled>().empty());
  CHECK_FALSE(c.finished);
}

TEST_CASE("a switch to what was not filled ends the server rather than the training's truth", "[ps]") {
  Conversation c;
  Train(c);
  SECTION("nothing was prepared") {}
  bool other_version = false;
  SECTION("at another version") {
    PrepareAndFill(c);
    other_version = true;
  }
  SECTION("not filled") { c.Chief(ToTwo(2)); }
  SECTION("not complete yet") {
    c.Chief(ToTwo(2));
    c.hold_memory = true;
    c.Chief(Fill{LayoutNumber(2), At(1)});
  }
  c.layout = 2;
  c.Chief(Switch{other_version ? At(2) : At(1)});
  REQUIRE(c.finished);
  CHECK_THAT(std::string(c.finished->message()), Contains("layout 2"));
}

TEST_CASE("state is served to other servers of the layout, at the version they ask for only", "[ps]") {
  Conversation c;
  Train(c);
  const Fetch fetch{.request = 4, .version = At(1), .array = 0, .ranges = {{0, 32}}};
  c.Worker(99, fetch);  // before any Hello
  CHECK(c.Refused(99) == RefuseReason::kMalformed);
  Envelope other = c.FromWorker(2);
  c.WorkerSays(50, other, Hello{"ps:1"});
  REQUIRE(c.ToWorker<HelloAck>(50).size() == 1);
  c.WorkerSays(50, other, fetch);
  REQUIRE(c.Done<ServeFetch>().size() == 1);
  CHECK(c.Done<ServeFetch>()[0].session == SessionId(50));
  CHECK(c.Done<ServeFetch>()[0].fetch.request == 4);
  Fetch late = fetch;
  late.version = At(2);
  c.WorkerSays(50, other, late);
  CHECK(c.Refused(50) == RefuseReason::kRetry);
  CHECK(c.Done<ServeFetch>().size() == 1);
}

TEST_CASE("a server asks to leave once, again under each welcome, and goes when it is let go", "[ps]") {
  Conversation c;
  Train(c);
  c.Take(c.server.AskToLeave("SIGTERM", c.now));
  c.Take(c.server.AskToLeave("SIGTERM", c.now));
  REQUIRE(c.ToChief<Leave>().size() == 1);
  CHECK(c.ToChief<Leave>()[0].after_ticket);
  c.Chief(Welcome{.incarnation = Incarnation(1), .job_id = kJob, .renew_ms = 1000});  // the stream had broken
  CHECK(c.ToChief<Leave>().size() == 2);
  CHECK_FALSE(c.finished);
  c.Chief(LeaveNow{"its stripes are with others"});
  REQUIRE(c.finished);
  CHECK(c.finished->ok());
  CHECK_FALSE(c.ToChief<Leave>().back().after_ticket);
}

}  // namespace evenkeel::ps
