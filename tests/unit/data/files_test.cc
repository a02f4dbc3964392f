#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "data/files.h"
#include "unit/data/test_files.h"

namespace evenkeel {
namespace {

using namespace data_test;  // NOLINT: the helpers of this folder

TEST_CASE("gzip is known by its first bytes and not by its name", "[data][gzip]") {
  TempFolder folder;
  std::string text(100000, 'a');
  for (std::size_t i = 0; i < text.size(); i += 7) text[i] = static_cast<char>('b' + i % 20);
  CHECK(*data::ReadDataFile(folder.Write("plain.gz", text)) == text);
  CHECK(*data::ReadDataFile(folder.Write("packed.txt", Gzip(text))) == text);
  CHECK(*data::ReadDataFile(folder.Write("two.gz", Gzip("one, ") + Gzip("two"))) == "one, two");
  CHECK(*data::ReadDataFile(folder.Write("empty.gz", Gzip(""))) == "");
}

TEST_CASE("a gzip file that is cut short or damaged is refused", "[data][gzip]") {
  TempFolder folder;
  std::string packed = Gzip(std::string(5000, 'x') + "end");
  for (std::size_t size : {std::size_t{2}, std::size_t{12}, packed.size() / 2, packed.size() - 1}) {
    absl::Status status = data::ReadDataFile(folder.Write("cut.gz", packed.substr(0, size))).status();
    CHECK(status.code() == absl::StatusCode::kDataLoss);
    CHECK(Contains(status.ToString(), "truncated"));
  }
  std::string flipped = packed;
  flipped[flipped.size() - 6] ^= 1;  // in the checksum
  CHECK(data::ReadDataFile(folder.Write("flip.gz", flipped)).status().code() == absl::StatusCode::kDataLoss);
  CHECK(Contains(data::ReadDataFile(folder.Write("tail.gz", packed + "rest")).status().ToString(),
                 "4 bytes after the end"));
}

TEST_CASE("a missing set's error says where it is to be had", "[data][files]") {
  InputConfig input;
  input.train = IdxSource{"/nowhere/fashion-mnist/no-such-images.gz", "/nowhere/fashion-mnist/labels.gz"};
  CHECK(Contains(WhyNot(input), "NOT_FOUND: [data] /nowhere/fashion-mnist/no-such-images.gz"));
  CHECK(Contains(WhyNot(input), "Debian package dataset-fashion-mnist"));
  input.train = CsvSource{.files = {"/nowhere/wine-quality/winequality-white.csv"}};
  CHECK(Contains(WhyNot(input), "archive.ics.uci.edu"));
  input.train = CsvSource{.files = {}};
  CHECK(Contains(WhyNot(input), "lists no file"));
}

TEST_CASE("a set's state is described by its files and by what is missing", "[data][files]") {
  TempFolder folder;
  std::filesystem::create_directory(folder.path() + "/mnist");
  folder.Write("mnist/images", "x");
  InputConfig input;
  input.train = IdxSource{folder.path() + "/mnist/images", folder.path() + "/mnist/labels"};
  input.eval = CsvSource{.files = {folder.path() + "/own/table.csv"}};
  std::vector<KnownSet> sets = DescribeSets(input, "");
  REQUIRE(sets.size() == 2);
  CHECK(sets[0].name == "mnist");
  CHECK(sets[0].files.size() == 2);
  CHECK(sets[0].missing == std::vector<std::string>{folder.path() + "/mnist/labels"});
  CHECK(sets[1].name == "own");
  CHECK(sets[1].missing.size() == 1);

  input.eval.reset();
  input.train = IdxSource{"${FASHION_MNIST}/no-such-images", "${FASHION_MNIST}/no-such-labels"};
  sets = DescribeSets(input, "");
  REQUIRE(sets.size() == 1);
  CHECK(sets[0].name == "fashion-mnist");
  CHECK(Contains(sets[0].origin, "dataset-fashion-mnist"));
  CHECK(sets[0].missing.size() == 2);
}

TEST_CASE("a path below the data folder is also looked for where packages put sets", "[data][files]") {
  TempFolder folder;
  // Of another name than the machine's own variable, so that nothing else is found.
  std::string name = "${EVENKEEL_DATA}/no-such-set/file";
  std::string saved = DataFolder();
  setenv("EVENKEEL_DATA", folder.path().c_str(), 1);
  absl::StatusOr<data::ResolvedFile> file = data::ResolveFile(name, "");
  REQUIRE(file.ok());
  CHECK_FALSE(file->exists);
  CHECK(file->path == folder.path() + "/no-such-set/file");
  std::filesystem::create_directory(folder.path() + "/no-such-set");
  folder.Write("no-such-set/file", "x");
  CHECK(data::ResolveFile(name, "")->exists);
  // The package's place leads to the data folder too.
  file = data::ResolveFile("/usr/share/datasets/no-such-set/file", "");
  CHECK(file->exists);
  CHECK(file->path == folder.path() + "/no-such-set/file");
  unsetenv("EVENKEEL_DATA");
  CHECK(data::ResolveFile(name, "").status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(data::ResolveFile(name, folder.path())->exists);
  if (!saved.empty()) setenv("EVENKEEL_DATA", saved.c_str(), 1);
}

}  // namespace
}  // namespace evenkeel
