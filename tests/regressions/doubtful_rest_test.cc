// A worker whose update a server refused took it for dropped. It may have been committed, with the rest of rounding
// that it included, and the word of it lost: the next update included that rest once more.
#include "unit/worker/worker_alone.h"

namespace evenkeel {
namespace {

Stage AwaitClosing(WorkerAlone& worker) {
  for (;;) {
    const auto stage = worker.server_.inbox()->NextBody<Stage>();
    if (stage.closing) return stage;
  }
}

TEST_CASE("an update that a server refuses leaves its rest of rounding in doubt", "[regression]") {
  WorkerAlone worker(R"(, "wire_dtype": "bfloat16")");
  worker.Admit();
  const auto step = [&](std::uint64_t sequence) {
    worker.TellTicket(sequence, At(sequence));
    worker.SendAll(worker.server_.inbox()->NextBody<Pull>().request, At(sequence), 0.5f);
    return AwaitClosing(worker);
  };
  const Stage first = step(1);
  CHECK(first.feedback == 0);
  worker.chief_.Tell(Outcome{first.update, true, At(2)});
  const Stage second = step(2);
  CHECK(second.feedback == 1);
  worker.server_.Tell(
      Refuse{.reason = RefuseReason::kStaleTerm, .message = "decided meanwhile", .update = second.update});
  const Stage third = step(3);
  CHECK(third.feedback == 0);
  worker.chief_.Tell(Outcome{third.update, true, At(4)});
  worker.EndJob();
}

}  // namespace
}  // namespace evenkeel
