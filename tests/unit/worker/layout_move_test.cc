// A worker between two layouts: whoever serves on keeps its stream, and those who come are connected to ahead.
#include "unit/worker/worker_alone.h"

namespace evenkeel {
namespace {

class Moved : public WorkerAlone {
 public:
  // The step of ticket `sequence`, on `version`, from one server or, where there are two, from the other one first.
  Stage TakeStep(std::uint64_t sequence, Version version, std::size_t servers) {
    TellTicket(sequence, version);
    if (servers == 2) Serve(other_, 0, version);
    Serve(server_, servers == 2 ? 1 : 0, version);
    if (servers == 2) (void)AwaitStaged(other_, 0);
    const Stage staged = AwaitStaged(server_, servers == 2 ? 1 : 0);
    chief_.Tell(Outcome{staged.update, true, At(version.commit.value() + 1)});
    return staged;
  }

 private:
  void Serve(ScriptedPeer& server, std::uint32_t place, Version version) {
    const auto pull = server.inbox()->NextBody<Pull>();
    CHECK(pull.at_least == version);
    SendStripes(server, place, pull.request, version, 0.5f, 0, buckets());
    server.Tell(PullData{pull.request, version, -1});
  }
};

TEST_CASE("a worker connects ahead to a server that comes, and keeps its stream to the one that serves on",
          "[worker]") {
  Moved worker;
  worker.Admit();
  const Stage before = worker.TakeStep(1, At(2), 1);
  (void)worker.server_.inbox()->NextBody<Pull>();  // ahead, of the next version

  worker.chief_.Tell(ConnectAhead{LayoutNumber(2), {kOther, kServer}});
  worker.other_.Await(1);
  worker.other_.inbox()->Next<Hello>();
  CHECK(worker.chief_.inbox()->Count<ConnectedAhead>() == 0);
  worker.other_.Tell(HelloAck{});
  CHECK(worker.chief_.inbox()->NextBody<ConnectedAhead>().layout == LayoutNumber(2));

  worker.Divide(LayoutNumber(2), {kOther, kServer});
  const Stage after = worker.TakeStep(2, At(3), 2);
  CHECK(after.samples == before.samples);
  CHECK(after.loss_sum == before.loss_sum);
  CHECK(worker.other_.streams() == 1);
  CHECK(worker.server_.streams() == 1);

  (void)worker.server_.inbox()->NextBody<Pull>();
  worker.Divide(LayoutNumber(3), {kServer});
  worker.other_.inbox()->AwaitClosed();
  CHECK(worker.TakeStep(3, At(4), 1).loss_sum == before.loss_sum);
  CHECK(worker.server_.streams() == 1);
  CHECK(worker.chief_.inbox()->Count<ConnectedAhead>() == 1);
  worker.EndJob();
}

TEST_CASE("a welcome takes an order to connect ahead back, and it is told again", "[worker]") {
  Moved worker;
  worker.Admit();
  worker.chief_.Tell(ConnectAhead{LayoutNumber(2), {kServer, kOther}});
  worker.other_.Await(1);
  worker.other_.inbox()->Next<Hello>();
  worker.Divide(LayoutNumber(1), {kServer});  // as after a stream that broke
  worker.other_.inbox()->AwaitClosed();
  worker.chief_.inbox()->Next<Ready>();
  CHECK(worker.chief_.inbox()->Count<ConnectedAhead>() == 0);
  worker.chief_.Tell(ConnectAhead{LayoutNumber(2), {kServer, kOther}});
  worker.Accept(worker.other_, 2);
  CHECK(worker.chief_.inbox()->NextBody<ConnectedAhead>().layout == LayoutNumber(2));
  (void)worker.TakeStep(1, At(2), 1);
  CHECK(worker.chief_.inbox()->Count<ConnectedAhead>() == 1);
  worker.EndJob();
}

TEST_CASE("what a server sends of the layout before does not count in the next one", "[worker]") {
  Moved worker;
  worker.Admit();
  const Stage before = worker.TakeStep(1, At(2), 1);
  const auto ahead = worker.server_.inbox()->NextBody<Pull>();
  worker.SendBuckets(ahead.request, At(3), 0, 1, worker.buckets());
  worker.Divide(LayoutNumber(2), {kOther, kServer});
  worker.Accept(worker.other_, 1);
  worker.chief_.inbox()->Next<Ready>();
  worker.server_.Tell(PullData{ahead.request, At(3), -1});
  worker.server_.Tell(StageAck{.update = before.update, .missing = {0}});
  worker.server_.Tell(Refuse{RefuseReason::kStaleGeneration, "the job has moved", {}});
  CHECK(worker.TakeStep(2, At(3), 2).loss_sum == before.loss_sum);
  worker.EndJob();
}

TEST_CASE("parameters that were here before the layout changed are not asked for again", "[worker]") {
  Moved worker;
  worker.Admit();
  const Stage before = worker.TakeStep(1, At(2), 1);
  worker.SendAll(worker.server_.inbox()->NextBody<Pull>().request, At(3), 0.5f);
  worker.Divide(LayoutNumber(2), {kOther, kServer});
  worker.Accept(worker.other_, 1);
  worker.chief_.inbox()->Next<Ready>();
  worker.TellTicket(2, At(3));
  const Stage staged = worker.AwaitStaged(worker.other_, 0);
  CHECK(staged.computed_on == At(3));
  CHECK(staged.loss_sum == before.loss_sum);
  CHECK(worker.AwaitStaged(worker.server_, 1).computed_on == At(3));
  worker.chief_.Tell(Outcome{staged.update, true, At(4)});
  CHECK(worker.other_.inbox()->NextBody<Pull>().at_least == At(4));
  worker.EndJob();
}

TEST_CASE("a layout that will not come takes the streams to its servers with it", "[worker]") {
  Moved worker;
  worker.Admit();
  (void)worker.TakeStep(1, At(2), 1);
  worker.chief_.Tell(ConnectAhead{LayoutNumber(2), {kServer, kOther}});
  worker.Accept(worker.other_, 1);
  worker.chief_.inbox()->Next<ConnectedAhead>();
  worker.chief_.Tell(ConnectAhead{LayoutNumber(2), {}});
  worker.other_.inbox()->AwaitClosed();
  // Refused for good by a server that is in no layout: nothing that this worker ends of.
  worker.chief_.Tell(ConnectAhead{LayoutNumber(3), {kServer, kOther}});
  worker.other_.Await(2);
  worker.other_.inbox()->Next<Hello>();
  worker.other_.Tell(Refuse{RefuseReason::kForeignJob, "serves another job", {}});
  (void)worker.TakeStep(2, At(3), 1);
  CHECK(worker.chief_.inbox()->Count<ConnectedAhead>() == 1);
  worker.EndJob();
}

}  // namespace
}  // namespace evenkeel
