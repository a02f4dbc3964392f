// The chief's disk thread carried out what followed the manifest that it had written. Where others brought more all the
// while it went on with that, and in the end waited for room in the queue that it alone empties.
#include <catch2/catch.hpp>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "evenkeel/core/mutex.h"
#include "scenarios/cluster_harness.h"

namespace evenkeel::scenarios {
namespace {

// Remembers who wrote manifests, and who the commit log.
class WatchedStorage final : public Storage {
 public:
  std::set<std::thread::id> manifests() const { return Get(manifests_); }
  std::set<std::thread::id> log() const { return Get(log_); }

  absl::StatusOr<std::string> Read(const std::string& path, std::uint64_t max_bytes) const override {
    return inner_.Read(path, max_bytes);
  }
  absl::Status ReadAt(const std::string& path, std::uint64_t offset, std::span<std::byte> out) const override {
    return inner_.ReadAt(path, offset, out);
  }
  absl::StatusOr<std::uint64_t> Size(const std::string& path) const override { return inner_.Size(path); }
  bool Exists(const std::string& path) const override { return inner_.Exists(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) const override {
    return inner_.List(folder);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Open(const std::string& path, Create mode) override {
    auto opened = inner_.Open(path, mode);
    if (!opened.ok()) return opened.status();
    return std::make_unique<File>(*this, *std::move(opened), absl::StrContains(path, "chief.wal."));
  }
  absl::Status WriteAtomic(const std::string& path, std::span<const std::byte> bytes) override {
    if (absl::EndsWith(path, "manifest.json")) Note(manifests_);
    return inner_.WriteAtomic(path, bytes);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override { return inner_.Rename(from, to); }
  absl::Status Truncate(const std::string& path, std::uint64_t size) override { return inner_.Truncate(path, size); }
  absl::Status MakeFolder(const std::string& folder) override { return inner_.MakeFolder(folder); }
  absl::Status Remove(const std::string& path) override { return inner_.Remove(path); }
  absl::Status RemoveFolder(const std::string& folder) override { return inner_.RemoveFolder(folder); }
  absl::Status SyncFolder(const std::string& folder) override { return inner_.SyncFolder(folder); }

 private:
  using Threads = std::set<std::thread::id>;

  struct File final : WritableFile {
    File(WatchedStorage& s, std::unique_ptr<WritableFile> i, bool log) : storage(s), inner(std::move(i)), is_log(log) {}
    absl::Status Append(std::span<const std::byte> bytes) override {
      if (is_log) storage.Note(storage.log_);
      return inner->Append(bytes);
    }
    absl::Status Sync() override { return inner->Sync(); }
    absl::Status Close() override { return inner->Close(); }
    WatchedStorage& storage;
    const std::unique_ptr<WritableFile> inner;
    const bool is_log;
  };

  void Note(Threads& threads) {
    MutexLock lock(mutex_);
    threads.insert(std::this_thread::get_id());
  }
  Threads Get(const Threads& threads) const {
    MutexLock lock(mutex_);
    return threads;
  }

  Storage& inner_ = Storage::Posix();
  mutable Mutex mutex_;
  Threads manifests_, log_;
};

}  // namespace

TEST_CASE("the thread that writes manifests carries nothing else out", "[regression]") {
  TempFolder folder;
  WatchedStorage storage;
  ClusterOptions options{Mlp({"train.epochs=3", "checkpoint.every_commits=1"}), 1, 1, folder.path()};
  options.chief_storage = &storage;
  const Ended ended = RunCluster(std::move(options));
  INFO(ended.ToString());
  REQUIRE(ended.all_ok());
  REQUIRE(storage.manifests().size() == 1);
  REQUIRE_FALSE(storage.log().empty());
  CHECK_FALSE(storage.log().contains(*storage.manifests().begin()));
}

}  // namespace evenkeel::scenarios
