// A server's stream that breaks while parameters come, and goes on with another version.
#include "unit/worker/worker_alone.h"

namespace evenkeel {
namespace {

TEST_CASE("a step whose pull was torn between two versions stages nothing and computes on one", "[worker]") {
  WorkerAlone worker;
  worker.Admit();
  REQUIRE(worker.buckets() > 3);
  worker.TellTicket(1, At(2));
  worker.SendAll(worker.server_.inbox()->NextBody<Pull>().request, At(2), 0.5f);
  const Stage whole = worker.AwaitStaged();
  CHECK(whole.computed_on == At(2));
  CHECK(whole.samples == 4);
  worker.chief_.Tell(Outcome{whole.update, true, At(3)});

  worker.TellTicket(2, At(3));
  const auto first = worker.server_.inbox()->NextBody<Pull>();
  CHECK(first.at_least == At(3));
  // The first layer computes on what nothing else will be of.
  worker.SendBuckets(first.request, At(3), 0, 1, worker.buckets());
  worker.server_.CloseStream();
  worker.AcceptServerStream(2);
  const auto again = worker.server_.inbox()->NextBody<Pull>();
  CHECK(again.request == first.request);
  worker.SendAll(again.request, At(4), 0.5f);
  const auto anew = worker.server_.inbox()->NextBody<Pull>();
  CHECK(anew.request > again.request);
  CHECK(worker.server_.inbox()->Count<Stage>() == 0);
  worker.SendAll(anew.request, At(4), 0.5f);
  const Stage staged = worker.AwaitStaged();
  CHECK(staged.update.sequence == 2);
  CHECK(staged.computed_on == At(4));
  CHECK(staged.loss_sum == whole.loss_sum);
  worker.chief_.Tell(Outcome{staged.update, true, At(5)});
  worker.EndJob();
}

}  // namespace
}  // namespace evenkeel
