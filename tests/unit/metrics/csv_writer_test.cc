#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/metrics/sinks.h"

namespace evenkeel {
namespace {

const std::vector<std::string> kHeader = {"commit", "loss"};

std::unique_ptr<CsvWriter> MustOpen(Storage& storage, std::optional<std::int64_t> resume_after = std::nullopt,
                                    const std::vector<std::string>& header = kHeader) {
  auto writer = CsvWriter::Open(storage, "a.csv", header, resume_after);
  INFO(writer.status().ToString());
  REQUIRE(writer.ok());
  return *std::move(writer);
}

std::string Text(const Storage& storage, const std::string& path = "a.csv") { return *storage.Read(path); }

void Put(Storage& storage, const std::string& text) { REQUIRE(storage.WriteAtomic("a.csv", AsBytes(text)).ok()); }

TEST_CASE("rows follow the header, quoted where needed", "[metrics]") {
  auto storage = MakeMemoryStorage();
  auto writer = MustOpen(*storage);
  REQUIRE(writer->Write({"1", "0.5"}).ok());
  REQUIRE(writer->Write({"2", "a,\"b\"\nc"}).ok());
  REQUIRE(writer->Flush().ok());
  CHECK(Text(*storage) == "commit,loss\n1,0.5\n2,\"a,\"\"b\"\"\nc\"\n");
}

TEST_CASE("a row of another length is refused", "[metrics]") {
  auto storage = MakeMemoryStorage();
  auto writer = MustOpen(*storage);
  CHECK(absl::IsInvalidArgument(writer->Write({"1"})));
  CHECK(absl::IsInvalidArgument(writer->Write({"1", "2", "3"})));
  writer.reset();
  CHECK(Text(*storage) == "commit,loss\n");
}

TEST_CASE("a resumed job goes on behind its rows", "[metrics]") {
  auto storage = MakeMemoryStorage();
  REQUIRE(MustOpen(*storage)->Write({"1", "0.5"}).ok());
  REQUIRE(MustOpen(*storage)->Write({"2", "0.4"}).ok());
  CHECK(Text(*storage) == "commit,loss\n1,0.5\n2,0.4\n");
}

TEST_CASE("rows beyond the checkpoint resumed from are cut", "[metrics]") {
  auto storage = MakeMemoryStorage();
  const std::string text = "commit,loss\n8,a\n9,\"x\n99,y\"\n10,b\n11,c\n";
  Put(*storage, text);
  MustOpen(*storage, 11);
  CHECK(Text(*storage) == text);
  MustOpen(*storage, 10);
  CHECK(Text(*storage) == "commit,loss\n8,a\n9,\"x\n99,y\"\n10,b\n");
  REQUIRE(MustOpen(*storage, 8)->Write({"9", "d"}).ok());
  CHECK(Text(*storage) == "commit,loss\n8,a\n9,d\n");
  MustOpen(*storage, -1);
  CHECK(Text(*storage) == "commit,loss\n");
}

TEST_CASE("rows are cut right in a file of many chunks", "[metrics]") {
  auto storage = MakeMemoryStorage();
  std::string text = "commit,loss\n";
  std::string kept;
  for (int commit = 1; commit <= 60000; ++commit) {
    absl::StrAppend(&text, commit, ",0.", commit * 7919, "\n");
    if (commit == 50000) kept = text;
  }
  Put(*storage, text);
  MustOpen(*storage, 50000);
  CHECK(Text(*storage) == kept);
}

TEST_CASE("a last row that was cut short goes", "[metrics]") {
  auto storage = MakeMemoryStorage();
  for (const char* torn : {"3", "3,", "3,0.3", "3,\"0.3\n"}) {
    Put(*storage, absl::StrCat("commit,loss\n1,0.5\n", torn));
    REQUIRE(MustOpen(*storage)->Write({"3", "0.3"}).ok());
    CHECK(Text(*storage) == "commit,loss\n1,0.5\n3,0.3\n");
  }
}

TEST_CASE("a header that was cut short is written again", "[metrics]") {
  auto storage = MakeMemoryStorage();
  for (const char* torn : {"", "com", "commit,loss"}) {
    Put(*storage, torn);
    REQUIRE(MustOpen(*storage)->Write({"1", "2"}).ok());
    CHECK(Text(*storage) == "commit,loss\n1,2\n");
  }
  CHECK_FALSE(storage->Exists("a.csv.1"));
}

TEST_CASE("a file with other columns is kept under another name", "[metrics]") {
  auto storage = MakeMemoryStorage();
  REQUIRE(MustOpen(*storage)->Write({"1", "2"}).ok());
  MustOpen(*storage, 5, {"commit", "accuracy"});
  MustOpen(*storage, 5, {"commit"});
  CHECK(Text(*storage) == "commit\n");
  CHECK(Text(*storage, "a.csv.1") == "commit,loss\n1,2\n");
  CHECK(Text(*storage, "a.csv.2") == "commit,accuracy\n");
}

TEST_CASE("a csv whose folder is missing is an error that names it", "[metrics]") {
  auto storage = MakeMemoryStorage();
  const auto writer = CsvWriter::Open(*storage, "none/a.csv", kHeader, std::nullopt);
  CHECK(absl::IsNotFound(writer.status()));
  CHECK(writer.status().message().find("none/a.csv") != std::string_view::npos);
}

}  // namespace
}  // namespace evenkeel
