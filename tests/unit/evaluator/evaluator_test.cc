// The evaluator alone on a model_dir.
#include "evenkeel/evaluator/evaluator.h"

#include <thread>

#include "evenkeel/transport/transports.h"
#include "fixture.h"

namespace evenkeel {
namespace {

using namespace evaluator_test;

absl::Status RunAlone(const LinearJob& job, const EvaluatorOptions& options) {
  std::unique_ptr<Transport> transport = MakeInprocTransport();
  StopSource stop;
  return RunEvaluator(options, *transport, Storage::Posix(), Clock::Real(), stop);
}
absl::Status RunAlone(const LinearJob& job) { return RunAlone(job, job.Options()); }

TEST_CASE("alone, each checkpoint is scored once, in order, also after a restart", "[evaluator]") {
  LinearJob job;
  job.Write(At(1, 0), 0, 0);
  job.Write(At(1, 2), 0, 1);
  job.Write(At(1, 4), 2, 0);
  Must(RunAlone(job));
  CHECK(job.ScoredInOrder() == "g1-c2 g1-c4");  // nothing was trained at commit 0
  // commit, generation, epoch, samples_trained, seconds, loss, mse, mae: errors 2x are 0, 2, 4, 6
  CHECK(job.Rows()[0][2] == "1");
  CHECK(job.Rows()[0][3] == "4");
  CHECK(std::stod(job.Rows()[0][6]) == Approx(14));
  CHECK(std::stod(job.Rows()[0][7]) == Approx(3));
  CHECK(std::stod(job.Rows()[1][6]) == Approx(1));

  Must(RunAlone(job));
  CHECK(job.Rows().size() == 2);
  job.Write(At(2, 4), 2, 1, /*final=*/true);
  Must(RunAlone(job));
  CHECK(job.ScoredInOrder() == "g1-c2 g1-c4 g2-c4");
  CHECK(std::stod(job.Rows()[2][6]) == Approx(0).margin(1e-9));
}

TEST_CASE("the best export is kept across a restart and replaced by a better one only", "[evaluator]") {
  LinearJob job;
  job.Write(At(1, 2), 2, 0);
  Must(RunAlone(job));
  CHECK(job.Best()["checkpoint"] == "g1-c2");
  const std::string first = Must(Storage::Posix().Read(job.Path("best/model.safetensors")));
  job.Write(At(1, 4), 0, 1);
  job.Write(At(1, 6), 2, 2);  // as good
  Must(RunAlone(job));
  CHECK(job.Rows().size() == 3);
  CHECK(job.Best()["checkpoint"] == "g1-c2");
  CHECK(Must(Storage::Posix().Read(job.Path("best/model.safetensors"))) == first);
  job.Write(At(1, 8), 2, 1);
  Must(RunAlone(job));
  CHECK(job.Best()["checkpoint"] == "g1-c8");
  CHECK(job.Best()["metric"] == "mse");
  CHECK(job.Best()["value"].get<double>() == Approx(0).margin(1e-9));
}

TEST_CASE("without an experiment it takes the manifest's and ends at the final checkpoint", "[evaluator]") {
  LinearJob job;
  job.Write(At(1, 2), 0, 1);
  job.Write(At(1, 4), 2, 1, /*final=*/true);
  EvaluatorOptions options = job.Options();
  options.experiment.reset();
  Must(RunAlone(job, options));
  CHECK(job.ScoredInOrder() == "g1-c2 g1-c4");
}

TEST_CASE("a row of eval.csv that a crash lost is made up for", "[evaluator]") {
  LinearJob job;
  job.Write(At(1, 2), 0, 1);
  Must(RunAlone(job));
  Must(Storage::Posix().Remove(job.Path("eval.csv")));
  job.Write(At(1, 4), 2, 1);
  Must(RunAlone(job));
  CHECK(job.ScoredInOrder() == "g1-c2 g1-c4");
}

TEST_CASE("every_commits thins the scores but never drops the final one", "[evaluator]") {
  LinearJob job(R"({"metrics": ["mse"], "every_commits": 10})");
  for (std::uint64_t commit : {5, 10, 15, 20}) job.Write(At(1, commit), 0, 1);
  job.Write(At(2, 12), 0, 1);  // rolled back below the last scored
  job.Write(At(2, 14), 2, 1, /*final=*/true);
  Must(RunAlone(job));
  CHECK(job.ScoredInOrder() == "g1-c5 g1-c15 g2-c12 g2-c14");
}

TEST_CASE("newest_only skips what lies behind", "[evaluator]") {
  LinearJob job(R"({"metrics": ["mse"], "newest_only": true})");
  for (std::uint64_t commit : {5, 10, 15}) job.Write(At(1, commit), 0, 1);
  Must(RunAlone(job));
  CHECK(job.ScoredInOrder() == "g1-c15");
}

TEST_CASE("a damaged checkpoint is skipped, the others are scored", "[evaluator]") {
  LinearJob job;
  job.Write(At(1, 2), 0, 1);
  job.Write(At(1, 4), 2, 1);
  const std::string part = JoinPath(CheckpointFolder(job.model_dir(), At(1, 2)), PartFileName(ServerIndex(0), 1));
  const std::uint64_t size = Must(Storage::Posix().Size(part));
  Must(Storage::Posix().Truncate(part, size - 1));
  Must(RunAlone(job));
  CHECK(job.ScoredInOrder() == "g1-c4");
}

TEST_CASE("where every checkpoint is damaged it fails with data loss", "[evaluator]") {
  LinearJob job;
  job.Write(At(1, 2), 0, 1);
  const std::string part = JoinPath(CheckpointFolder(job.model_dir(), At(1, 2)), PartFileName(ServerIndex(0), 1));
  Must(Storage::Posix().Truncate(part, 1));
  CHECK(absl::IsDataLoss(RunAlone(job)));
}

TEST_CASE("another model's checkpoint is refused by tensor", "[evaluator]") {
  LinearJob job;
  job.Write(At(1, 2), 0, 1);
  EvaluatorOptions options = job.Options();
  options.experiment->model.layers[0].name = "other";
  const absl::Status status = RunAlone(job, options);
  CHECK(absl::IsInvalidArgument(status));
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("g1-c2") && Catch::Contains("out/") && Catch::Contains("other/"));
}

TEST_CASE("an experiment without evaluation data is wrong input", "[evaluator]") {
  LinearJob job(R"({"metrics": ["mse"]})", /*with_eval=*/false);
  const absl::Status status = RunAlone(job);
  CHECK(absl::IsInvalidArgument(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("input.eval"));
}

TEST_CASE("a model_dir without checkpoints ends the wait by name", "[evaluator]") {
  LinearJob job;
  const absl::Status status = RunAlone(job);
  CHECK(absl::IsDeadlineExceeded(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains(job.model_dir()));
}

TEST_CASE("a live job is followed to its final checkpoint", "[evaluator]") {
  LinearJob job;
  job.experiment.eval.idle_timeout = std::chrono::seconds(60);
  absl::Status status = absl::UnknownError("did not return");
  std::thread evaluator([&] { status = RunAlone(job); });
  job.Write(At(1, 2), 0, 1);
  job.Write(At(1, 4), 2, 0);
  job.Write(At(1, 6), 2, 1, /*final=*/true);
  evaluator.join();
  Must(status);
  CHECK(job.ScoredInOrder() == "g1-c2 g1-c4 g1-c6");
}

TEST_CASE("a stop ends the wait for checkpoints", "[evaluator]") {
  LinearJob job;
  job.experiment.eval.idle_timeout = std::chrono::hours(1);
  std::unique_ptr<Transport> transport = MakeInprocTransport();
  StopSource stop;
  absl::Status status = absl::UnknownError("did not return");
  const EvaluatorOptions options = job.Options();
  std::thread evaluator([&] { status = RunEvaluator(options, *transport, Storage::Posix(), Clock::Real(), stop); });
  stop.Request("told to");
  evaluator.join();
  Must(status);
}

TEST_CASE("another job in the same folder is scored from the start", "[evaluator]") {
  LinearJob job;
  job.Write(At(1, 2), 0, 1);
  Must(RunAlone(job));
  absl::StatusOr<Manifest> manifest = ReadManifest(Storage::Posix(), job.model_dir(), At(1, 2));
  REQUIRE(manifest.ok());
  manifest->job_id = std::string(32, 'b');
  Must(WriteManifest(Storage::Posix(), job.model_dir(), *manifest));
  Must(RunAlone(job));
  CHECK(job.ScoredInOrder() == "g1-c2 g1-c2");
}

}  // namespace
}  // namespace evenkeel
