// A server that was told to stop while its stream to the chief was broken ended at once: its stripes were lost, and the
// job rolled back.
#include "unit/runtime/scripted_job.h"

namespace evenkeel {

TEST_CASE("a server that is told to stop while the chief is away asks to leave once it is back", "[regression]") {
  Job job;
  job.options_.stop_grace = std::chrono::seconds(60);
  job.chief_.Listen();
  job.StartServer();
  job.Welcome();
  job.Place();
  job.chief_.StopListening();
  job.chief_.CloseStream();
  job.chief_.inbox()->AwaitClosed();
  job.stop_.Request("SIGTERM");
  job.chief_.Listen();
  job.Welcome(2);
  const Leave leave = job.chief_.inbox()->NextBody<Leave>();
  CHECK(leave.after_ticket);
  CHECK(leave.reason == "told to stop");
  job.Tell(LeaveNow{"its stripes are with others"});
  CHECK_FALSE(job.chief_.inbox()->NextBody<Leave>().after_ticket);
  CHECK(job.Result().ok());
}

}  // namespace evenkeel
