#include <catch2/catch.hpp>
#include <cstring>

#include "evenkeel/core/digest.h"
#include "evenkeel/metrics/sinks.h"

namespace evenkeel {
namespace {

std::unique_ptr<EventFileWriter> MustOpen(Storage& storage, const Clock& clock, std::string_view suffix = "chief") {
  auto writer = EventFileWriter::Open(storage, "/logs", clock, suffix);
  REQUIRE(writer.ok());
  return *std::move(writer);
}

std::string OnlyFile(const Storage& storage) {
  auto names = storage.List("/logs");
  REQUIRE(names.ok());
  REQUIRE(names->size() == 1);
  return "/logs/" + names->front();
}

// The payloads of a well-framed file; fails on any checksum.
std::vector<std::string> Records(const std::string& bytes) {
  std::vector<std::string> records;
  auto word = [&](std::size_t at) {
    std::uint32_t value;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
  };
  for (std::size_t at = 0; at < bytes.size();) {
    REQUIRE(bytes.size() - at >= 16);
    std::uint64_t length;
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    REQUIRE(length <= bytes.size() - at - 16);
    CHECK(word(at + 8) == MaskedCrc32c(AsBytes(std::string_view(bytes).substr(at, 8))));
    records.push_back(bytes.substr(at + 12, length));
    CHECK(word(at + 12 + length) == MaskedCrc32c(AsBytes(records.back())));
    at += 16 + length;
  }
  return records;
}

TEST_CASE("an event file has these bytes", "[metrics]") {
  auto storage = MakeMemoryStorage();
  ManualClock clock;  // one second after 1970
  auto writer = MustOpen(*storage, clock);
  clock.Advance(std::chrono::milliseconds(500));
  const Scalar loss{"loss", 0.25};
  REQUIRE(writer->Write(7, {&loss, 1}).ok());
  REQUIRE(writer->Flush().ok());
  const std::string bytes = *storage->Read(OnlyFile(*storage));

  // Event{wall_time: 1.0, file_version: "brain.Event:2"}
  std::string version_event(
      "\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0d"
      "brain.Event:2",
      24);
  // Event{wall_time: 1.5, step: 7, summary: {value: {tag: "loss", simple_value: 0.25}}}
  std::string scalar_event("\x09\0\0\0\0\0\0\xf8\x3f\x10\x07\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\x80\x3e", 26);
  CHECK(Records(bytes) == std::vector<std::string>{version_event, scalar_event});

  // The first record as TensorFlow's own writer frames it: the length's masked checksum is known.
  CHECK(bytes.substr(0, 12) == std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  CHECK(bytes.size() == 16 + version_event.size() + 16 + scalar_event.size());
}

TEST_CASE("an event file's name carries seconds and suffix", "[metrics]") {
  auto storage = MakeMemoryStorage();
  ManualClock clock;
  clock.Advance(std::chrono::seconds(1699999999));
  auto writer = MustOpen(*storage, clock, "evaluator");
  const std::string name = OnlyFile(*storage);
  CHECK(name.starts_with("/logs/events.out.tfevents.1700000000."));
  CHECK(name.ends_with(".evaluator"));
}

TEST_CASE("two writers of one second have files of their own", "[metrics]") {
  auto storage = MakeMemoryStorage();
  ManualClock clock;
  auto first = MustOpen(*storage, clock);
  auto second = MustOpen(*storage, clock);
  const auto names = storage->List("/logs");
  REQUIRE(names->size() == 2);
  for (const std::string& name : *names) CHECK(Records(*storage->Read("/logs/" + name)).size() == 1);
}

TEST_CASE("what was written reaches the file on flush, when much, and at the end", "[metrics]") {
  auto storage = MakeMemoryStorage();
  ManualClock clock;
  auto writer = MustOpen(*storage, clock);
  const std::string path = OnlyFile(*storage);
  const std::vector<Scalar> scalars = {{"loss", 1}, {"learning_rate", 0.1}};
  REQUIRE(writer->Write(1, scalars).ok());
  REQUIRE(writer->Flush().ok());
  CHECK(Records(*storage->Read(path)).size() == 2);
  for (int step = 2; step < 4000; ++step) REQUIRE(writer->Write(step, scalars).ok());
  CHECK(*storage->Size(path) > 100000);
  writer.reset();
  CHECK(Records(*storage->Read(path)).size() == 4000);
}

TEST_CASE("an event file that cannot be opened is an error", "[metrics]") {
  auto storage = MakeMemoryStorage();
  REQUIRE(storage->WriteAtomic("/logs", AsBytes("a file")).ok());
  ManualClock clock;
  CHECK_FALSE(EventFileWriter::Open(*storage, "/logs", clock, "").ok());
}

}  // namespace
}  // namespace evenkeel
