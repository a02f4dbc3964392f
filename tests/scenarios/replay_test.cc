// What a cluster did comes out of its log again, bit for bit; and a log or a checkpoint that tells something else is
// found out.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/protocol/commit_log.h"
#include "evenkeel/replay/replay.h"
#include "scenarios/cluster_harness.h"

namespace evenkeel::scenarios {
namespace {

// Every part of a step whose bits could go wrong: momentum, clipping, batch norm's statistics, dropout.
std::vector<std::string> Everything(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {
      R"(model={"layers": [{"dense": {"units": 16}, "name": "hidden"}, {"batch_norm": {}, "name": "norm"}, {"relu": {}},
                           {"dropout": {"rate": 0.3}}, {"dense": {"units": 3}, "name": "scores"}]})",
      "train.optimizer.clip_norm=0.5", "checkpoint.every_commits=5", "checkpoint.keep_max=100"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

const std::vector<std::string> kAsp = {"train.sync.mode=asp", "train.schedule.learning_rate=0.01"};
const std::vector<std::string> kSsp = {"train.sync.mode=ssp", "train.sync.staleness=1",
                                       "train.schedule.learning_rate=0.01"};

void Run(const std::vector<std::string>& overrides, int workers, int servers, const std::string& model_dir,
         ReadHook on_read = nullptr) {
  const Ended ended = RunCluster({Mlp(overrides), workers, servers, model_dir, std::move(on_read)});
  INFO(ended.ToString());
  REQUIRE(ended.all_ok());
}

absl::StatusOr<ReplayReport> TryReplay(const std::string& model_dir, ReplayOptions options = {}) {
  options.model_dir = model_dir;
  return Replay(options, Storage::Posix(), nullptr);
}

ReplayReport ReplayOf(const std::string& model_dir, ReplayOptions options = {}) {
  auto report = TryReplay(model_dir, std::move(options));
  INFO(report.status());
  REQUIRE(report.ok());
  for (const std::string& difference : report->differences) UNSCOPED_INFO(difference);
  return *std::move(report);
}

void CheckSameBits(const ReplayReport& report) {
  CHECK(report.agrees());
  CHECK(report.differences.empty());
  CHECK(report.commits_bit_for_bit == report.commits);
  for (const CheckpointComparison& checkpoint : report.checkpoints) {
    INFO(CheckpointName(checkpoint.version));
    CHECK(checkpoint.agrees);
    for (const ArrayComparison& array : checkpoint.arrays) CHECK(array.same_bits);
  }
}

// --- changing what is on disk ---------------------------------------------------------------------------------------

std::vector<LogRecord> ReadRecords(const std::string& model_dir) {
  std::vector<LogRecord> records;
  REQUIRE(ReadLog(Storage::Posix(), model_dir, [&](const LogFile&, LogRecord record) {
            records.push_back(std::move(record));
            return absl::OkStatus();
          }).ok());
  return records;
}

std::vector<Decision> Decisions(const std::string& model_dir) {
  std::vector<Decision> decisions;
  for (const LogRecord& record : ReadRecords(model_dir)) {
    if (const auto* commit = std::get_if<CommitRecord>(&record)) decisions.push_back(commit->decision);
  }
  return decisions;
}

// Chains the decisions anew, so that only who recomputes can find the change.
void ChangeLog(const std::string& model_dir, const std::function<void(std::vector<LogRecord>&)>& change) {
  std::vector<LogRecord> records = ReadRecords(model_dir);
  change(records);
  std::string bytes;
  std::uint64_t hash = 0;
  for (LogRecord& record : records) {
    if (auto* commit = std::get_if<CommitRecord>(&record)) {
      commit->decision.previous_hash = hash;
      commit->decision.hash = hash = HashDecision(commit->decision);
    }
    bytes += EncodeLogRecord(record);
  }
  Storage& storage = Storage::Posix();
  const std::vector<LogFile> files = ListLogFiles(storage, model_dir).value();
  for (const LogFile& file : files) REQUIRE(storage.Remove(JoinPath(model_dir, file.name)).ok());
  REQUIRE(storage.WriteAtomic(JoinPath(model_dir, LogFileName(Term(1))), AsBytes(bytes)).ok());
}

Decision& DecisionAt(std::vector<LogRecord>& records, std::uint64_t number) {
  for (LogRecord& record : records) {
    auto* commit = std::get_if<CommitRecord>(&record);
    if (commit != nullptr && commit->decision.version.commit.value() == number) return commit->decision;
  }
  FAIL("no commit " << number);
  std::abort();
}

// Writes the newest checkpoint anew, with all its checksums.
void ChangeCheckpoint(const std::string& model_dir, const std::function<void(Manifest&)>& change_manifest,
                      const std::string& change_array = "", std::size_t at = 0, float by = 0) {
  Storage& storage = Storage::Posix();
  auto list = ListCheckpoints(storage, model_dir);
  REQUIRE(list.ok());
  const Version version = list->versions.back();
  auto reader = CheckpointReader::Open(storage, model_dir, version);
  REQUIRE(reader.ok());
  Manifest manifest = reader->manifest();
  std::vector<std::string> names = {"parameters"};
  for (const std::string& slot : SlotNames(manifest.optimizer)) names.push_back("slot." + slot);
  std::vector<std::vector<float>> values;
  std::vector<PartArray> arrays;
  for (const std::string& name : names) {
    const bool slot = name != "parameters";
    values.emplace_back(static_cast<std::size_t>(slot ? manifest.parameter_floats : manifest.total_floats));
    REQUIRE(reader->Read(name, 0, values.back()).ok());
    if (name == change_array) values.back()[at] += by;
  }
  for (std::size_t i = 0; i < names.size(); ++i) arrays.push_back({names[i], {{0, values[i]}}});
  auto part = WritePart(storage, CheckpointFolder(model_dir, version), "changed.safetensors", arrays);
  REQUIRE(part.ok());
  manifest.parts = {*part};
  change_manifest(manifest);
  REQUIRE(WriteManifest(storage, model_dir, manifest).ok());
}

bool Mentions(const ReplayReport& report, const std::string& text) {
  return std::any_of(report.differences.begin(), report.differences.end(),
                     [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

// --- agreement ------------------------------------------------------------------------------------------------------

TEST_CASE("a run comes out of its log bit for bit in every mode", "[scenario][replay]") {
  const std::vector<std::vector<std::string>> modes = {
      {"train.sync.mode=bsp"}, {"train.sync.mode=bsp", "train.sync.backup_workers=1"}, kAsp, kSsp};
  const std::string wire = GENERATE("float32", "bfloat16");
  for (auto mode : modes) {
    mode.push_back("train.wire_dtype=" + wire);
    mode.push_back("train.parameter_wire_dtype=" + wire);
    INFO(mode[0] << " " << mode.back());
    TempFolder folder;
    Run(Everything(mode), 3, 2, folder.path());
    const ReplayReport report = ReplayOf(folder.path());
    CheckSameBits(report);
    CHECK(report.status == "finished");
    CHECK(report.samples == 2 * kSamples);
    CHECK(report.epochs_complete == 2);
    CHECK(report.commits == static_cast<std::int64_t>(Decisions(folder.path()).size()));
    REQUIRE_FALSE(report.checkpoints.empty());
    CHECK(report.commits_after_last_checkpoint == 0);
    REQUIRE(report.checkpoints.back().arrays.size() == 3);  // parameters, statistics, slot
    CHECK(report.checkpoints.back().version == report.to);
    // How many are computed at a time changes nothing.
    for (int jobs : {1, 3}) {
      ReplayOptions options;
      options.jobs = jobs;
      CheckSameBits(ReplayOf(folder.path(), options));
    }
  }
}

// A checkpoint that lies between a version and the commit of an update that was computed on it.
std::optional<Version> StraddledCheckpoint(const std::string& model_dir) {
  auto list = ListCheckpoints(Storage::Posix(), model_dir);
  REQUIRE(list.ok());
  for (const Decision& decision : Decisions(model_dir)) {
    for (const Version& used : decision.updates[0].computed_on) {
      for (const Version& version : list->versions) {
        if (used.commit < version.commit && version.commit < decision.version.commit) return version;
      }
    }
  }
  return std::nullopt;
}

TEST_CASE("streams that break while parameters come never mix two versions in one step", "[scenario][replay]") {
  TempFolder folder;
  const auto breaks = [](Cluster& cluster, int worker, std::int64_t read) {
    if (worker == 1 && read % 40 == 20) cluster.BreakStreams();
  };
  std::vector<std::string> overrides = kAsp;
  overrides.insert(overrides.end(), {"train.bucket_bytes=128", "train.epochs=3"});
  Run(Everything(overrides), 3, 2, folder.path(), breaks);
  CheckSameBits(ReplayOf(folder.path()));
}

TEST_CASE("updates that were computed on old versions are recomputed on those", "[scenario][replay]") {
  std::optional<Version> between;
  for (int attempt = 0; attempt < 5 && !between; ++attempt) {
    TempFolder folder;
    std::atomic<bool> slow_has_begun{false}, other_is_far{false};
    // Worker 0 has its version when it waits for its third batch, while worker 1 goes on.
    Run(Everything({"train.sync.mode=asp", "train.schedule.learning_rate=0.01", "train.epochs=3"}), 2, 2, folder.path(),
        [&](Cluster&, int worker, std::int64_t read) {
          if (worker == 1 && read == 80) slow_has_begun.wait(false);
          if (worker == 1 && read == 800) {
            other_is_far = true;
            other_is_far.notify_all();
          }
          if (worker == 0 && read == 120) {
            slow_has_begun = true;
            slow_has_begun.notify_all();
            other_is_far.wait(false);
          }
        });
    CheckSameBits(ReplayOf(folder.path()));
    between = StraddledCheckpoint(folder.path());
    if (!between) continue;
    // From there on what it was computed on is not known.
    ReplayOptions options;
    options.from = CheckpointName(*between);
    const auto report = TryReplay(folder.path(), options);
    CHECK(report.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(report.status().message()), Catch::Contains("begin earlier"));
  }
  CHECK(between.has_value());
}

TEST_CASE("a job that was stopped and went on otherwise comes out of all its logs", "[scenario][replay]") {
  TempFolder folder;
  const auto stop = [](Cluster& cluster, int worker, std::int64_t read) {
    if (worker != 0 || read != 300) return;
    cluster.StopChief("the test says so");
    cluster.AwaitChief();
  };
  Run(Everything({}), 2, 1, folder.path(), stop);
  const ReplayReport stopped = ReplayOf(folder.path());
  CheckSameBits(stopped);
  CHECK(stopped.status == "stopped");
  // Another number of workers and servers, another mode, more dropout: another experiment.
  Run(Everything({"train.sync.mode=asp", "train.epochs=3", "model.layers[3].dropout.rate=0.5",
                  "train.schedule.learning_rate=0.01"}),
      3, 3, folder.path());
  const ReplayReport whole = ReplayOf(folder.path());
  CheckSameBits(whole);
  CHECK(whole.samples == 3 * kSamples);
  CHECK(whole.commits > stopped.commits);
  // From the checkpoint where the second chief began.
  ReplayOptions options;
  options.from = absl::StrCat(stopped.to.commit.value());
  const ReplayReport rest = ReplayOf(folder.path(), options);
  CheckSameBits(rest);
  CHECK(rest.commits == whole.commits - stopped.commits);
}

TEST_CASE("a job that has not ended may remove its checkpoints meanwhile", "[scenario][replay]") {
  TempFolder folder;
  Run(Everything({}), 2, 2, folder.path());
  ChangeLog(folder.path(), [](auto& records) {
    std::erase_if(records, [](const LogRecord& record) { return std::holds_alternative<EndRecord>(record); });
  });
  bool removed = false;
  ReplayOptions options;
  options.model_dir = folder.path();
  const auto report = Replay(options, Storage::Posix(), [&](const ReplayProgress&) {
    if (!std::exchange(removed, true)) {
      REQUIRE(Storage::Posix().RemoveFolder(JoinPath(folder.path(), "checkpoints")).ok());
    }
  });
  INFO(report.status());
  REQUIRE(report.ok());
  CheckSameBits(*report);
  CHECK(report->status.empty());
  REQUIRE(report->checkpoints.size() == 1);
  CHECK(report->checkpoints[0].version == report->to);
}

TEST_CASE("each term is computed with its own experiment, though no checkpoint carries the first one any more",
          "[scenario][replay]") {
  TempFolder folder;
  Run({"train.epochs=1", "checkpoint.keep_max=1"}, 2, 1, folder.path());
  Run({"train.epochs=2", "checkpoint.keep_max=1"}, 2, 1, folder.path());
  CheckSameBits(ReplayOf(folder.path()));
  // As logs were once.
  ChangeLog(folder.path(), [](auto& records) {
    for (LogRecord& record : records) {
      if (auto* term = std::get_if<TermRecord>(&record)) term->experiment_json.clear();
    }
  });
  const auto without = TryReplay(folder.path());
  CHECK(without.status().code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(without.status().message()), Catch::Contains("term 1 ran the experiment"));
}

// --- falsification --------------------------------------------------------------------------------------------------

TEST_CASE("one changed value in a checkpoint is found, with its place", "[scenario][replay]") {
  for (const std::string array : {"parameters", "slot.momentum"}) {
    TempFolder folder;
    Run({}, 2, 2, folder.path());
    const std::vector<std::string> slots = SlotNames(Mlp({}).train.optimizer);
    const std::string name = array == "parameters" ? array : "slot." + slots.at(0);
    ChangeCheckpoint(
        folder.path(), [](Manifest&) {}, name, 35, 1e-6f);
    const ReplayReport report = ReplayOf(folder.path());
    CHECK_FALSE(report.agrees());
    CHECK(report.differences_found == 1);
    CHECK(Mentions(report, name + ": 1 of "));
    CHECK(Mentions(report, "hidden/weight[35]"));
    CHECK_FALSE(report.checkpoints.back().agrees);
  }
}

TEST_CASE("a log that tells something else than what was done is found", "[scenario][replay]") {
  TempFolder folder;
  Run({"checkpoint.every_commits=5", "checkpoint.keep_max=100"}, 2, 2, folder.path());
  std::string found_at;
  SECTION("another learning rate") {
    ChangeLog(folder.path(), [](auto& records) { DecisionAt(records, 17).learning_rate *= 1.001; });
    found_at = "commit 18: its loss";  // the first to compute on it
  }
  SECTION("another scale") {
    ChangeLog(folder.path(), [](auto& records) { DecisionAt(records, 17).clip_scale = 0.999; });
    found_at = "commit 17: its gradient is scaled by";
  }
  SECTION("samples of another step") {
    ChangeLog(folder.path(), [](auto& records) {
      std::swap(DecisionAt(records, 17).updates[0].positions, DecisionAt(records, 19).updates[0].positions);
    });
    found_at = "commit 17: its loss";
  }
  SECTION("an older version") {
    ChangeLog(folder.path(), [](auto& records) {
      Version& version = DecisionAt(records, 17).updates[1].computed_on[1];
      version.commit = CommitNumber(version.commit.value() - 1);
    });
    found_at = "commit 17: its loss";
  }
  SECTION("samples that counted before") {
    ChangeLog(folder.path(), [](auto& records) {
      DecisionAt(records, 19).updates[0].positions = DecisionAt(records, 17).updates[0].positions;
    });
    found_at = "count twice";
  }
  const ReplayReport report = ReplayOf(folder.path());
  CHECK_FALSE(report.agrees());
  CHECK(Mentions(report, found_at));
  for (const CheckpointComparison& checkpoint : report.checkpoints) {
    if (checkpoint.version.commit < CommitNumber(17)) CHECK(checkpoint.agrees);
  }
  CHECK_FALSE(report.checkpoints.back().agrees);
}

// --- other machines, other data -------------------------------------------------------------------------------------

TEST_CASE("what another kind of machine computed agrees within rounding", "[scenario][replay]") {
  TempFolder folder;
  Run(Everything({}), 2, 2, folder.path());
  // As if the reference backend's results had come from a library that is not here: oneDNN stands in for it.
  ChangeLog(folder.path(), [](auto& records) {
    for (LogRecord& record : records) {
      if (auto* admission = std::get_if<AdmissionRecord>(&record)) {
        admission->compute_fingerprint = "cpu oneDNN 9.9 loops:none threads:2";
      }
    }
  });
  const ReplayReport report = ReplayOf(folder.path());
  CHECK(report.agrees());
  CHECK(report.commits_bit_for_bit == 0);
  REQUIRE(report.fingerprints.size() == 1);
  CHECK_FALSE(report.fingerprints[0].reproducible());
  CHECK(report.fingerprints[0].here.find("threads:2") != std::string::npos);
  const ArrayComparison& parameters = report.checkpoints.back().arrays[0];
  CHECK_FALSE(parameters.same_bits);
  CHECK(parameters.relative > 0);
  CHECK(parameters.relative < 1e-4);
  ReplayOptions strict;
  strict.tolerance = 1e-12;
  CHECK_FALSE(ReplayOf(folder.path(), strict).agrees());
}

TEST_CASE("what cannot be replayed is refused with the reason", "[scenario][replay]") {
  TempFolder folder;
  const auto refused = [&](absl::StatusCode code, const std::string& says, ReplayOptions options = {}) {
    const auto report = TryReplay(folder.path(), std::move(options));
    INFO(report.status());
    CHECK(report.status().code() == code);
    CHECK(std::string(report.status().message()).find(says) != std::string::npos);
  };
  refused(absl::StatusCode::kNotFound, "commit log");
  Run({"train.epochs=1", "train.sync.mode=asp", "checkpoint.every_commits=5", "checkpoint.keep_max=100"}, 2, 1,
      folder.path());
  ReplayOptions from;
  from.from = "1000";
  refused(absl::StatusCode::kInvalidArgument, "--from 1000", from);
  SECTION("other data") {
    ChangeCheckpoint(folder.path(), [](Manifest& manifest) { manifest.data_fingerprint = "another"; });
    refused(absl::StatusCode::kInvalidArgument, "training data");
  }
  SECTION("a damaged log") {
    const std::string path = JoinPath(folder.path(), LogFileName(Term(1)));
    std::string bytes = *Storage::Posix().Read(path);
    bytes[20] = static_cast<char>(bytes[20] ^ 1);
    REQUIRE(Storage::Posix().WriteAtomic(path, AsBytes(bytes)).ok());
    refused(absl::StatusCode::kDataLoss, "chief.wal.1");
  }
  SECTION("no checkpoint") {
    REQUIRE(Storage::Posix().RemoveFolder(JoinPath(folder.path(), "checkpoints")).ok());
    refused(absl::StatusCode::kNotFound, "nothing to compare with");
  }
}

}  // namespace
}  // namespace evenkeel::scenarios
