#include "evenkeel/runtime/ps_runner.h"

#include <catch2/catch.hpp>

#include "evenkeel/checkpoint/checkpoint.h"
#include "unit/runtime/scripted_job.h"

namespace evenkeel {
namespace {

TEST_CASE("a server joins, stages, seals, applies, serves, snapshots and ends with its job", "[runtime]") {
  Job job;
  job.chief_.Listen();
  job.StartServer();
  Join join = job.Welcome();
  CHECK(join.name == "ps:0");
  CHECK(join.role == Role::kPs);
  CHECK(join.nonce != 0);
  job.Place();
  job.ConnectWorker();
  job.WorkerTells(Pull{.request = 1, .at_least = At(0), .deadline_ms = 10000});
  CHECK(job.Pulled(1) == std::vector<float>(100, 1.0f));

  job.WorkerTells(Pull{.request = 2, .at_least = At(1), .deadline_ms = 30000});  // before there is such a version
  job.StageAll(1, 2.0f);
  job.Commit(1);
  Version version;
  CHECK(job.Pulled(2, &version) == std::vector<float>(100, 0.75f));  // 1 - 0.5 * 2 / 4
  CHECK(version == At(1));

  job.Tell(Snapshot{At(1), CheckpointFolder("model", At(1)), PartFileName(ServerIndex(0), 1)});
  auto done = job.chief_.inbox()->NextBody<SnapshotDone>();
  CHECK(done.error.empty());
  CHECK(done.version == At(1));
  CHECK(*job.storage_->Size(CheckpointFolder("model", At(1)) + "/" + done.file) == done.bytes);

  CHECK_FALSE(job.chief_.inbox()->NextBody<Renew>().state.empty());
  job.Tell(JobEnd{true, "finished", ""});
  CHECK(job.Result().ok());
  job.from_worker_->AwaitClosed();
}

TEST_CASE("a snapshot that cannot be written is the chief's to judge", "[runtime]") {
  Job job;
  job.chief_.Listen();
  job.StartServer();
  job.Welcome();
  job.Place();
  REQUIRE(job.storage_->WriteAtomic("model", {}).ok());  // a file where the folder should be
  job.Tell(Snapshot{At(0), "", ""});
  CHECK_FALSE(job.chief_.inbox()->NextBody<SnapshotDone>().error.empty());
  job.Tell(JobEnd{false, "failed", "no checkpoint"});
  CHECK(job.Result().code() == absl::StatusCode::kAborted);
}

TEST_CASE("after its stream broke a server joins again with the same nonce and tells what is staged", "[runtime]") {
  Job job;
  job.chief_.Listen();
  job.StartServer();
  const Join first = job.Welcome();
  job.Place();
  job.ConnectWorker();
  job.StageAll(1, 2.0f);
  job.chief_.CloseStream();
  const Join second = job.Welcome(2);
  CHECK(second.nonce == first.nonce);
  CHECK(job.chief_.inbox()->NextBody<Staged>().update.sequence == 1);
  job.Commit(1);
  job.Tell(JobEnd{true, "stopped", ""});
  CHECK(job.Result().ok());
}

TEST_CASE("without a chief a server gives up and names it", "[runtime]") {
  Job job(std::chrono::milliseconds(50));
  job.StartServer();
  absl::Status status = job.Result();
  CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("the chief at chief"));
}

TEST_CASE("a server whose chief is gone for good ends", "[runtime]") {
  Job job(std::chrono::milliseconds(1000));
  job.chief_.Listen();
  job.StartServer();
  job.Welcome();
  job.Place();
  job.chief_.StopListening();
  CHECK(job.Result().code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("a server whose chief says nothing on an open stream joins it again", "[runtime]") {
  Job job;
  job.chief_.Listen();
  job.StartServer();
  const Join first = job.Welcome(1, /*lease_ms=*/100);
  job.Place();
  const std::shared_ptr<Inbox> silent = job.chief_.inbox();
  const Join second = job.Welcome(2);
  CHECK(second.nonce == first.nonce);
  silent->AwaitClosed();
  job.Tell(JobEnd{true, "finished", ""});
  CHECK(job.Result().ok());
}

TEST_CASE("a server that hears of the end only when it comes back says so", "[runtime]") {
  Job job;
  job.chief_.Listen();
  job.StartServer();
  job.Welcome();
  job.Place();
  job.chief_.CloseStream();
  job.chief_.Await(2);
  job.chief_.inbox()->Next<Join>();
  job.Tell(JobEnd{true, "finished", ""});
  job.chief_.inbox()->Next<Leave>();
  CHECK(job.Result().ok());
}

TEST_CASE("a server that is told to stop takes leave", "[runtime]") {
  Job job;
  job.chief_.Listen();
  job.StartServer();
  job.Welcome();
  job.Place();
  job.stop_.Request("SIGTERM");
  CHECK(job.chief_.inbox()->NextBody<Leave>().reason == "told to stop");
  CHECK(job.Result().ok());
}

TEST_CASE("a refused server ends as refused", "[runtime]") {
  Job job;
  job.chief_.Listen();
  job.StartServer();
  job.Welcome();
  job.Tell(Refuse{RefuseReason::kForeignJob, "this is another job", {}});
  CHECK(job.Result().code() == absl::StatusCode::kPermissionDenied);
}

TEST_CASE("a fenced server joins again as a new process under its name, and serves", "[runtime]") {
  Job job;
  job.chief_.Listen();
  job.StartServer();
  const Join first = job.Welcome();
  CHECK(first.former == Incarnation());
  job.Place();
  job.Tell(Refuse{RefuseReason::kStaleIncarnation, "incarnation 1 is no member any more", {}});
  const Join second = job.Welcome(2);
  CHECK(second.name == first.name);
  CHECK(second.former == Incarnation(1));
  CHECK(second.nonce != first.nonce);
  CHECK(second.holding == Holding());
  job.Place();
  job.ConnectWorker();
  job.Tell(JobEnd{true, "finished", ""});
  CHECK(job.Result().ok());
}

}  // namespace
}  // namespace evenkeel
