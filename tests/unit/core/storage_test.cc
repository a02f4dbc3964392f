#include "evenkeel/core/storage.h"

#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include <catch2/catch.hpp>

#include "evenkeel/core/digest.h"

namespace evenkeel {
namespace {

// A storage and an empty folder in it; both kinds must pass the same claims.
class Fixture {
 public:
  explicit Fixture(bool posix) {
    if (posix) {
      char path[] = "/tmp/evenkeel_storage_XXXXXX";
      REQUIRE(mkdtemp(path) != nullptr);
      folder_ = path;
      storage_ = &Storage::Posix();
    } else {
      memory_ = MakeMemoryStorage();
      storage_ = memory_.get();
      folder_ = "/jobs/a";
      REQUIRE(storage_->MakeFolder(folder_).ok());
    }
  }
  ~Fixture() { (void)storage_->RemoveFolder(folder_); }
  Storage& storage() { return *storage_; }
  std::string Path(std::string_view name) const { return JoinPath(folder_, name); }

 private:
  std::unique_ptr<Storage> memory_;
  Storage* storage_ = nullptr;
  std::string folder_;
};

void Write(Storage& storage, const std::string& path, std::string_view text,
           Storage::Create mode = Storage::Create::kTruncate) {
  auto file = storage.Open(path, mode);
  REQUIRE(file.ok());
  REQUIRE((*file)->Append(AsBytes(text)).ok());
  REQUIRE((*file)->Sync().ok());
  REQUIRE((*file)->Close().ok());
}

TEST_CASE("what is written is read", "[core][storage]") {
  Fixture fixture(GENERATE(false, true));
  Storage& storage = fixture.storage();
  const std::string path = fixture.Path("f");
  Write(storage, path, "hello");
  CHECK(*storage.Read(path) == "hello");
  CHECK(*storage.Size(path) == 5);
  Write(storage, path, " world", Storage::Create::kAppend);
  CHECK(*storage.Read(path) == "hello world");
  Write(storage, path, "new");
  CHECK(*storage.Read(path) == "new");
  std::string large(3 << 20, 'x');
  REQUIRE(storage.WriteAtomic(path, AsBytes(large)).ok());
  CHECK(*storage.Read(path) == large);
}

TEST_CASE("a read is bounded", "[core][storage]") {
  Fixture fixture(GENERATE(false, true));
  Storage& storage = fixture.storage();
  const std::string path = fixture.Path("f");
  Write(storage, path, "0123456789");
  CHECK(storage.Read(path, 10).ok());
  absl::Status status = storage.Read(path, 9).status();
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains(path));
}

TEST_CASE("a part is read, and one past the end is out of range", "[core][storage]") {
  Fixture fixture(GENERATE(false, true));
  Storage& storage = fixture.storage();
  const std::string path = fixture.Path("f");
  Write(storage, path, "0123456789");
  std::string part(4, '\0');
  auto out = std::as_writable_bytes(std::span<char>(part));
  CHECK(storage.ReadAt(path, 6, out).ok());
  CHECK(part == "6789");
  CHECK(absl::IsOutOfRange(storage.ReadAt(path, 7, out)));
  CHECK(absl::IsOutOfRange(storage.ReadAt(path, 70, out)));
  CHECK(storage.ReadAt(path, 10, {}).ok());
}

TEST_CASE("an exclusive file is created once", "[core][storage]") {
  Fixture fixture(GENERATE(false, true));
  Storage& storage = fixture.storage();
  const std::string path = fixture.Path("term-1");
  CHECK(storage.Open(path, Storage::Create::kExclusive).ok());
  absl::Status status = storage.Open(path, Storage::Create::kExclusive).status();
  CHECK(absl::IsAlreadyExists(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains(path));
}

TEST_CASE("what is missing is not found, by name", "[core][storage]") {
  Fixture fixture(GENERATE(false, true));
  Storage& storage = fixture.storage();
  const std::string path = fixture.Path("none");
  std::byte one[1];
  for (const absl::Status& status :
       {storage.Read(path).status(), storage.ReadAt(path, 0, one), storage.Size(path).status(),
        storage.List(path).status(), storage.Remove(path), storage.RemoveFolder(path), storage.Truncate(path, 0),
        storage.Rename(path, fixture.Path("to")), storage.SyncFolder(path),
        storage.Open(path + "/f", Storage::Create::kTruncate).status(), storage.WriteAtomic(path + "/f", {})}) {
    CHECK(absl::IsNotFound(status));
    CHECK_THAT(std::string(status.message()), Catch::Contains(path));
  }
  CHECK_FALSE(storage.Exists(path));
}

TEST_CASE("an atomic write replaces the file and leaves nothing beside it", "[core][storage]") {
  Fixture fixture(GENERATE(false, true));
  Storage& storage = fixture.storage();
  const std::string path = fixture.Path("manifest");
  Write(storage, path, "old");
  REQUIRE(storage.WriteAtomic(path, AsBytes("new")).ok());
  CHECK(*storage.Read(path) == "new");
  CHECK(*storage.List(fixture.Path("")) == std::vector<std::string>{"manifest"});
  REQUIRE(storage.MakeFolder(fixture.Path("folder/inner")).ok());
  CHECK_FALSE(storage.WriteAtomic(fixture.Path("folder"), AsBytes("new")).ok());
  CHECK(*storage.List(fixture.Path("")) == std::vector<std::string>{"folder", "manifest"});
}

TEST_CASE("folders are made with their parents, listed in order and removed whole", "[core][storage]") {
  Fixture fixture(GENERATE(false, true));
  Storage& storage = fixture.storage();
  REQUIRE(storage.MakeFolder(fixture.Path("a/b/c")).ok());
  REQUIRE(storage.MakeFolder(fixture.Path("a/b/c/")).ok());
  Write(storage, fixture.Path("a/z"), "1");
  Write(storage, fixture.Path("a/b/y"), "2");
  CHECK(*storage.List(fixture.Path("a")) == std::vector<std::string>{"b", "z"});
  CHECK(storage.SyncFolder(fixture.Path("a")).ok());
  CHECK_FALSE(storage.MakeFolder(fixture.Path("a/z")).ok());
  CHECK_FALSE(storage.MakeFolder(fixture.Path("a/z/deeper")).ok());
  REQUIRE(storage.RemoveFolder(fixture.Path("a")).ok());
  CHECK_FALSE(storage.Exists(fixture.Path("a/b/y")));
  CHECK(storage.List(fixture.Path(""))->empty());
}

TEST_CASE("files and whole folders are renamed", "[core][storage]") {
  Fixture fixture(GENERATE(false, true));
  Storage& storage = fixture.storage();
  REQUIRE(storage.MakeFolder(fixture.Path("part/deep")).ok());
  Write(storage, fixture.Path("part/deep/f"), "1");
  REQUIRE(storage.Rename(fixture.Path("part"), fixture.Path("whole")).ok());
  CHECK(*storage.Read(fixture.Path("whole/deep/f")) == "1");
  CHECK_FALSE(storage.Exists(fixture.Path("part")));
  Write(storage, fixture.Path("g"), "2");
  REQUIRE(storage.Rename(fixture.Path("whole/deep/f"), fixture.Path("g")).ok());
  CHECK(*storage.Read(fixture.Path("g")) == "1");
  REQUIRE(storage.MakeFolder(fixture.Path("full/x")).ok());
  CHECK_FALSE(storage.Rename(fixture.Path("whole"), fixture.Path("full")).ok());
}

TEST_CASE("a truncated file ends there, and appends go on from there", "[core][storage]") {
  Fixture fixture(GENERATE(false, true));
  Storage& storage = fixture.storage();
  const std::string path = fixture.Path("log");
  Write(storage, path, "0123456789");
  REQUIRE(storage.Truncate(path, 4).ok());
  Write(storage, path, "x", Storage::Create::kAppend);
  CHECK(*storage.Read(path) == "0123x");
}

TEST_CASE("a file of /proc is read though it says it is empty", "[core][storage]") {
  auto text = Storage::Posix().Read("/proc/self/status");
  REQUIRE(text.ok());
  CHECK_THAT(*text, Catch::Contains("VmRSS"));
}

TEST_CASE("errors of the machine give path and reason", "[core][storage]") {
  absl::Status status = Storage::Posix().Read("/proc").status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("/proc: Is a directory"));
  status = Storage::Posix().WriteAtomic("/proc/none/f", {});
  CHECK_THAT(std::string(status.message()), Catch::Contains("/proc/none/f"));
  auto full = Storage::Posix().Open("/dev/full", Storage::Create::kAppend);
  if (full.ok()) CHECK(absl::IsResourceExhausted((*full)->Append(AsBytes("x"))));
}

TEST_CASE("paths join with one slash", "[core][storage]") {
  CHECK(JoinPath("a", "b") == "a/b");
  CHECK(JoinPath("a/", "b") == "a/b");
  CHECK(JoinPath("", "b") == "b");
  CHECK(JoinPath("a", "/b") == "/b");
  CHECK(JoinPath("a", "") == "a");
}

}  // namespace
}  // namespace evenkeel
