#include "progress.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "nlohmann/json.hpp"

namespace evenkeel::apps {
namespace {

using Json = nlohmann::json;
using Lines = std::vector<std::string>;

Json Running() {
  return Json{{"name", "mlp"},
              {"phase", "running"},
              {"term", 1},
              {"commit", 400},
              {"epoch", 3.25},
              {"epochs", 5},
              {"loss", 0.5},
              {"examples_per_second", 1000.0},
              {"eta_seconds", 65.0},
              {"waiting_for", ""},
              {"servers", {{{"name", "ps:0"}, {"incarnation", 1}, {"state", "serving"}}}},
              {"workers", {{{"name", "worker:0"}, {"incarnation", 2}, {"rank", 0}, {"batch", 64}}}}};
}

bool AnyHas(const Lines& lines, const std::string& text) {
  return std::any_of(lines.begin(), lines.end(),
                     [&text](const std::string& line) { return absl::StrContains(line, text); });
}

}  // namespace

TEST_CASE("a job that trains shows its rate and what is left", "[apps][fast]") {
  const std::string status = Running().dump();
  CHECK(absl::StrContains(StatusLine(status), "step 400  epoch 3.25 of 5  loss 0.5  1000 examples/s  ETA 1:05"));
  CHECK(AnyHas(FullStatusLines(status), "1000 examples/s"));
}

TEST_CASE("the way of each worker's data is shown, once where it is the same to all servers", "[apps][fast]") {
  Json status = Running();
  status["workers"][0]["data_paths"] = {"shm", "shm"};
  CHECK(AnyHas(FullStatusLines(status.dump()), "  by shm  "));
  status["workers"][0]["data_paths"] = {"shm", "tcp"};
  CHECK(AnyHas(FullStatusLines(status.dump()), "  by shm,tcp  "));
  status["workers"][0]["data_paths"] = Json::array();
  CHECK_FALSE(AnyHas(FullStatusLines(status.dump()), "  by "));
}

TEST_CASE("a job that stands still shows until when, what then, and no rate", "[apps][fast]") {
  Json status = Running();
  status["examples_per_second"] = status["eta_seconds"] = nullptr;
  status["waiting_for"] = "workers: 1 of at least 2 are here";
  status["waiting_seconds_left"] = 12.34;
  status["waiting_then"] = "the job ends";
  status["waiting_unless"] = "more workers join";
  const std::string expected =
      "waiting for workers: 1 of at least 2 are here; the job ends in 12.3 s unless more workers join";
  CHECK(StatusLine(status.dump()) == "waiting  step 400  epoch 3.25 of 5  " + expected);
  for (const Lines& lines : {StatusLines(status.dump()), FullStatusLines(status.dump())}) {
    CHECK(lines.back() == expected);
    CHECK_FALSE(AnyHas(lines, "examples/s"));
    CHECK_FALSE(AnyHas(lines, "ETA"));
  }
}

TEST_CASE("who joins, stands by or leaves is told from who trains", "[apps][fast]") {
  Json status = Running();
  status["workers"].push_back({{"name", "worker:a-machine-with-a-long-name-4711"}, {"rank", nullptr}});
  status["workers"].push_back({{"name", "worker:2"}, {"rank", nullptr}, {"standing_by", true}});
  status["workers"].push_back({{"name", "worker:3"}, {"rank", 1}, {"leaving", true}});
  status["joining"] = {"worker:4"};
  status["coming"] = {{{"name", "worker:5"}, {"seconds", 1.5}}};
  status["spare_servers"] = {{{"name", "ps:1"}, {"incarnation", 7}, {"state", "joined"}}};
  const Lines lines = FullStatusLines(status.dump());
  auto column_of = [&](const std::string& name, const std::string& text) {
    for (const std::string& line : lines) {
      if (absl::StrContains(line, name + " ")) return line.find(text);
    }
    return std::string::npos;
  };
  const std::size_t column = column_of("worker:0", "incarnation");
  CHECK(column == column_of("worker:a-machine-with-a-long-name-4711", "incarnation"));
  CHECK(column == column_of("ps:0", "incarnation"));
  CHECK(column == column_of("worker:4", "joining, waits to be taken in"));
  CHECK(column == column_of("worker:5", "joining, opens its data for 1.5 s"));
  CHECK(column_of("worker:a-machine-with-a-long-name-4711", "  joining  ") != std::string::npos);
  CHECK(column_of("worker:2", "  standing by  ") != std::string::npos);
  CHECK(column_of("worker:3", "rank 1, leaving") != std::string::npos);
  CHECK(column_of("ps:1", "standing by") != std::string::npos);
  CHECK(absl::StrContains(StatusLine(status.dump()), "worker:2 standing by, worker:3 batch 0"));
}

TEST_CASE("free samples are told apart by epoch", "[apps][fast]") {
  Json status = Running();
  status["ledger"] = {{"completed_epochs", 3}, {"next_epoch", 3}, {"free", 72128}, {"free_in_next_epoch", 12128}};
  status["dropped_updates"] = 1;
  CHECK(AnyHas(FullStatusLines(status.dump()),
               "samples: 3 of 5 epochs whole, 12128 free in epoch 4 and 60000 in the one after it, 0 in updates, 0 "
               "granted ahead, 1 update dropped"));
}

TEST_CASE("members that come and go are told once, also after the chief was started again", "[apps][fast]") {
  MembershipNews news;
  Json status = Running();
  status["member_events"] = {{{"number", 1}, {"kind", "left"}, {"text", "worker:9 left: before we looked"}}};
  CHECK(news.Take(status.dump()).empty());
  status["member_events"].push_back({{"number", 2}, {"kind", "left"}, {"text", "worker:1 left: evenkeel drain"}});
  status["spare_servers"] = {{{"name", "ps:1"}, {"incarnation", 7}}};
  CHECK(news.Take(status.dump()) == Lines{"worker:1 left: evenkeel drain", "ps:1 has joined"});
  CHECK(news.Take(status.dump()).empty());

  status["term"] = 2;
  status["phase"] = "gathering";
  status["spare_servers"] = Json::array();
  status["member_events"] = Json::array();
  CHECK(news.Take(status.dump()).empty());
  status["member_events"] = {{{"number", 1}, {"kind", "fenced"}, {"text", "worker:0 is fenced: its lease ended"}}};
  status["spare_servers"] = {{{"name", "ps:1"}, {"incarnation", 9}, {"leaving", true}}};
  status["phase"] = "running";
  CHECK(news.Take(status.dump()) == Lines{"worker:0 is fenced: its lease ended"});
  status["spare_servers"] = Json::array();
  CHECK(news.Take(status.dump()) == Lines{"ps:1 has left"});
  CHECK(news.Take("no status").empty());
}

TEST_CASE("a summary counts in whole words", "[apps][fast]") {
  Json summary{
      {"status", "finished"}, {"commits", 1}, {"epochs", 2}, {"wall_seconds", 65.0}, {"examples_per_second", 10.0}};
  CHECK(SummaryLines(summary.dump(), "/d").front() == "finished: 1 commit, 2 whole epochs in 1:05, 10 examples/s");
  CHECK(SummaryLines(summary.dump(), "/d", "nobody is left")[1] == "train loss none");
  summary["status"] = "stopped";
  summary["reason"] = "SIGTERM";
  CHECK(SummaryLines(summary.dump(), "/d")[1] == "reason: SIGTERM");
  CHECK(SummaryLines(summary.dump(), "/d", "nobody is left")[1] == "reason: nobody is left");
}

}  // namespace evenkeel::apps
