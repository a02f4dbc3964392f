#include "evenkeel/core/timeline.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

namespace evenkeel {
namespace {

std::string TextOf(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::size_t Count(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_CASE("a file that cannot be written is an error that names it", "[core][timeline]") {
  const absl::Status status = StartTimeline("/nowhere/timeline.json", "worker:0");
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(status.message()), Catch::Contains("/nowhere/timeline.json: No such file"));
  CHECK(!TimelineOn());
}

// Each process has one timeline, so each here is a child.
int InChild(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_CASE("processes write spans and marks into one file, each on tracks of its own", "[core][timeline]") {
  char folder[] = "/tmp/evenkeel-timeline-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/timeline.json";
  REQUIRE(BeginTimelineFile(path).ok());
  for (const char* process : {"worker:0", "ps:\"0\""}) {
    CHECK(InChild([&] {
            const TimePoint now = Clock::Real().Now();
            TimelineSpan("step", "never", now, now);  // not started
            if (!StartTimeline(path, process).ok() || !TimelineOn()) return false;
            TimelineSpan("step", "pull", now, now + std::chrono::microseconds(1500));
            TimelineMark("step", "staged", now);
            { TimelineBlock block("net", "wait"); }
            EndTimeline();
            TimelineMark("step", "never", now);
            return !TimelineOn();
          }) == 0);
  }
  REQUIRE(EndTimelineFile(path).ok());
  const std::string text = TextOf(path);
  INFO(text);
  CHECK(text.starts_with("[\n{"));
  CHECK(text.ends_with("}]\n"));
  CHECK(Count(text, "\n{") == 2 * 6 + 1);
  CHECK(Count(text, R"("name":"pull")") == 2);
  CHECK(Count(text, R"("ph":"X","dur":1500.000)") == 2);
  CHECK(Count(text, R"("ph":"i")") == 2);
  CHECK(Count(text, R"("tid":2)") == 4);
  CHECK(Count(text, R"("args":{"name":"ps:\"0\""})") == 1);
  CHECK(Count(text, "never") == 0);
  REQUIRE(unlink(path.c_str()) == 0);
  REQUIRE(rmdir(folder) == 0);
}

TEST_CASE("a process that begins the file begins the array", "[core][timeline]") {
  char folder[] = "/tmp/evenkeel-timeline-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/timeline.json";
  for (int life = 0; life < 2; ++life) {
    CHECK(InChild([&] {
            const bool started = StartTimeline(path, "chief:0").ok();
            EndTimeline();
            return started;
          }) == 0);
  }
  const std::string text = TextOf(path);
  CHECK(Count(text, "[") == 1);
  CHECK(Count(text, "process_name") == 2);
  REQUIRE(unlink(path.c_str()) == 0);
  REQUIRE(rmdir(folder) == 0);
}

}  // namespace
}  // namespace evenkeel
