#include "unit/checkpoint/fixture.h"

namespace evenkeel {
namespace {

using namespace checkpoint_test;

TEST_CASE("a checkpoint's name is g1-c42, and nothing else parses", "[checkpoint]") {
  CHECK(CheckpointName(At(1, 42)) == "g1-c42");
  CHECK(CheckpointFolder("/m", At(1, 42)) == "/m/checkpoints/g1-c42");
  CHECK(PartFileName(ServerIndex(0), 2) == "part-0-of-2.safetensors");
  const Version largest = At(std::numeric_limits<std::uint64_t>::max(), 0);
  CHECK(Must(ParseCheckpointName("g1-c42")) == At(1, 42));
  CHECK(Must(ParseCheckpointName(CheckpointName(largest))) == largest);
  for (const char* bad : {"", "g", "g1", "g1-c", "g-c1", "1-c42", "g1-c42x", "g01-c42", "g1-c042", "g1c42", "g1-c-42",
                          "g+1-c42", "g1-c99999999999999999999", "G1-c42"}) {
    INFO(bad);
    CHECK(absl::IsInvalidArgument(ParseCheckpointName(bad).status()));
  }
}

TEST_CASE("no model_dir means no checkpoints", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  const CheckpointList list = Must(ListCheckpoints(*storage, "/nowhere"));
  CHECK(list.versions.empty());
  CHECK(list.damaged.empty());
}

TEST_CASE("a write that was cut short never counts", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  WriteCheckpoint(*storage, "/model", At(1, 10), 2);
  // Parts, but no manifest.
  Must(storage->MakeFolder("/model/checkpoints/g1-c20"));
  Must(WritePart(*storage, "/model/checkpoints/g1-c20", "part-0-of-1.safetensors", {}));
  // A folder only.
  Must(storage->MakeFolder("/model/checkpoints/g1-c30"));
  // Half a manifest.
  WriteCheckpoint(*storage, "/model", At(1, 40), 1);
  const std::string path = "/model/checkpoints/g1-c40/manifest.json";
  const std::string text = Must(storage->Read(path));
  Overwrite(*storage, path, text.substr(0, text.size() / 2));
  // What is no checkpoint.
  Must(storage->MakeFolder("/model/checkpoints/best"));
  Overwrite(*storage, "/model/checkpoints/note.txt", "hello");

  const CheckpointList list = Must(ListCheckpoints(*storage, "/model"));
  CHECK(list.versions == std::vector<Version>{At(1, 10)});
  REQUIRE(list.damaged.size() == 1);
  CHECK(list.damaged[0].find("g1-c40/manifest.json") != std::string::npos);
  CHECK(absl::IsNotFound(CheckpointReader::Open(*storage, "/model", At(1, 20)).status()));
  CHECK(absl::IsDataLoss(CheckpointReader::Open(*storage, "/model", At(1, 40)).status()));
}

TEST_CASE("checkpoints are listed by number, not by spelling", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  for (Version version : {At(2, 100), At(1, 9), At(10, 1), At(1, 10)}) {
    WriteCheckpoint(*storage, "/model", version, 1);
  }
  CHECK(Must(ListCheckpoints(*storage, "/model")).versions ==
        std::vector<Version>{At(1, 9), At(1, 10), At(2, 100), At(10, 1)});
}

TEST_CASE("a removed checkpoint is gone with its folder", "[checkpoint]") {
  TemporaryFolder folder;
  Storage& storage = Storage::Posix();
  WriteCheckpoint(storage, folder.path(), At(1, 1), 2);
  WriteCheckpoint(storage, folder.path(), At(1, 2), 2);
  Must(RemoveCheckpoint(storage, folder.path(), At(1, 1)));
  CHECK_FALSE(storage.Exists(CheckpointFolder(folder.path(), At(1, 1))));
  CHECK(Must(ListCheckpoints(storage, folder.path())).versions == std::vector<Version>{At(1, 2)});
  CHECK(absl::IsNotFound(RemoveCheckpoint(storage, folder.path(), At(1, 1))));
  // One that never became complete can be cleared away too.
  Must(storage.MakeFolder(CheckpointFolder(folder.path(), At(1, 3))));
  Must(RemoveCheckpoint(storage, folder.path(), At(1, 3)));
}

TEST_CASE("a checkpoint that is written again replaces the first", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  Content content;
  WriteCheckpoint(*storage, "/model", At(1, 1), 2, content);
  content.parameters[5] = 77;
  WriteCheckpoint(*storage, "/model", At(1, 1), 2, content);
  CheckpointReader reader = Must(CheckpointReader::Open(*storage, "/model", At(1, 1)));
  std::vector<float> one(1);
  Must(reader.Read("parameters", 5, one));
  CHECK(one[0] == 77);
  CHECK(Must(storage->List("/model/checkpoints/g1-c1")).size() == 3);  // no temporary file stays
}

std::vector<std::uint64_t> Removed(const std::vector<std::uint64_t>& commits, std::int64_t keep_max,
                                   std::int64_t keep_every, const std::vector<std::uint64_t>& pinned = {}) {
  std::vector<Version> versions, pins;
  for (std::uint64_t commit : commits) versions.push_back(At(1, commit));
  for (std::uint64_t commit : pinned) pins.push_back(At(1, commit));
  std::vector<std::uint64_t> removed;
  for (Version version : CheckpointsToRemove(versions, keep_max, keep_every, pins)) {
    removed.push_back(version.commit.value());
  }
  return removed;
}

using Commits = std::vector<std::uint64_t>;

TEST_CASE("the keep_max newest checkpoints stay", "[checkpoint]") {
  CHECK(Removed({10, 20, 30, 40, 50}, 3, 0) == Commits{10, 20});
  CHECK(Removed({10, 20}, 3, 0).empty());
  CHECK(Removed({}, 3, 0).empty());
  CHECK(Removed({10, 20, 30}, 1, 0) == Commits{10, 20});
  // The newest stays whatever keep_max says.
  CHECK(Removed({10, 20, 30}, 0, 0) == Commits{10, 20});
}

TEST_CASE("multiples of keep_every stay beyond keep_max", "[checkpoint]") {
  CHECK(Removed({100, 150, 200, 250, 300, 350}, 2, 100) == Commits{150, 250});
  CHECK(Removed({100, 150, 200}, 1, 7) == Commits{100, 150});
}

TEST_CASE("commit 0 counts only while it is the newest", "[checkpoint]") {
  CHECK(Removed({0}, 3, 0).empty());
  CHECK(Removed({0, 10}, 3, 0) == Commits{0});
  CHECK(Removed({0, 10}, 3, 5) == Commits{0});
  CHECK(Removed({0, 10, 20}, 2, 0, {0}).empty());
}

TEST_CASE("pinned checkpoints stay and take no place of the newest", "[checkpoint]") {
  CHECK(Removed({10, 20, 30, 40}, 2, 0, {10}) == Commits{20});
  CHECK(Removed({10, 20, 30, 40}, 2, 0, {10, 20, 99}).empty());
}

TEST_CASE("a later generation is newer whatever its commit", "[checkpoint]") {
  const std::vector<Version> versions = {At(1, 50), At(1, 60), At(2, 50)};
  CHECK(CheckpointsToRemove(versions, 2, 0, {}) == std::vector<Version>{At(1, 50)});
}

}  // namespace
}  // namespace evenkeel
