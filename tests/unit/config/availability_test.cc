#include "evenkeel/config/availability.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <vector>

namespace evenkeel {
namespace {

using Events = std::vector<AvailabilityEvent>;

Events Parsed(const std::string& text) {
  const auto events = ParseAvailability(text, "trace");
  INFO(events.status().ToString());
  REQUIRE(events.ok());
  return *events;
}

std::string ErrorOf(const std::string& text) {
  const auto events = ParseAvailability(text, "trace");
  if (events.ok()) return "accepted";
  CHECK(events.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(events.status().message());
}

// A file below EVENKEEL_DATA/traces; empty, with a word, when it is not here.
std::string TraceFile(const std::string& name) {
  const char* data = std::getenv("EVENKEEL_DATA");
  std::string path = data != nullptr ? std::string(data) + "/traces/" + name : "";
  if (!path.empty() && std::filesystem::exists(path)) return path;
  std::cout << "skipped: EVENKEEL_DATA has no traces/" << name << "\n";
  return {};
}

Events Loaded(const std::string& path) {
  const auto events = LoadAvailability(path);
  INFO(events.status().ToString());
  REQUIRE(events.ok());
  return *events;
}

TEST_CASE("node events are taken as they stand", "[config][availability]") {
  CHECK(Parsed("0,add,node1\r\n0,add,node2\r\n\r\n1500, remove , node1\r\n2000,add,node1") ==
        Events{{0, true, "node1"}, {0, true, "node2"}, {1500, false, "node1"}, {2000, true, "node1"}});
}

TEST_CASE("of event lists only what comes and goes is taken", "[config][availability]") {
  CHECK(Parsed(R"([0, "add", {"nodes": ["a", "b"], "duration": 60000}]
[60000, "migration", {"nodes": [], "duration": 60000}]
[120000, "no-op", {"nodes": []}]
[180000, "remove", {"nodes": ["b"]}])") == Events{{0, true, "a"}, {0, true, "b"}, {180000, false, "b"}});
}

TEST_CASE("a live count that falls takes the node that was there longest", "[config][availability]") {
  CHECK(Parsed("0,2\n10,3\n20,1\n30,1\n40,2") == Events{{0, true, "node0"},
                                                        {0, true, "node1"},
                                                        {10, true, "node2"},
                                                        {20, false, "node0"},
                                                        {20, false, "node1"},
                                                        {40, true, "node3"}});
}

TEST_CASE("dated counts begin at their first moment, across midnight and out of order", "[config][availability]") {
  CHECK(Parsed("2021-12-31, 23:59:30, 1\n2022-01-01, 00:01:00, 1\n2022-01-01, 00:00:30, 2") ==
        Events{{0, true, "node0"}, {60000, true, "node1"}, {90000, false, "node0"}});
}

TEST_CASE("a bad trace is refused with its line, its field and what is right", "[config][availability]") {
  struct Case {
    std::string text;
    std::string error;
  };
  const std::vector<Case> cases = {
      {"", "trace: the trace has no lines"},
      {"\n \r\n", "trace: the trace has no lines"},
      {"hello", "trace: line 1: 'hello' is of no known trace; expected ms,add|remove,node or ms,count"},
      {"\x1f\x8b\x08\x02\xffwhatever", "trace: line 1: bytes that are no text (a compressed file? unpack it first)"},
      {"0,add,a\n1,stop,a", "trace: line 2, field 2 (action): 'stop' is neither add nor remove"},
      {"0,add,a\n\n-1,add,b", "trace: line 3, field 1 (ms): '-1' is no whole number from 0 to 315360000000"},
      {"315360000001,add,b", "line 1, field 1 (ms): '315360000001' is no whole number"},
      {"0,add,", "trace: line 1, field 3 (node): '' is no name of 1 to 64 characters"},
      {"0,add," + std::string(65, 'x'), "line 1, field 3 (node): 'xxxx"},
      {"0,add,a\n5", "trace: line 2: '5' has 1 fields; expected 3: ms,add|remove,node"},
      {"5,add,a\n4,add,b", "trace: line 2, field 1 (ms): 4 comes after 5; times must not go back"},
      {"0,add,a\n1,add,a", "trace: line 2: node 'a' is added, but it is there already"},
      {"0,add,a\n1,remove,b", "trace: line 2: node 'b' is removed, but it is not there"},
      {"0,x", "trace: line 1, field 2 (count): 'x' is no whole number from 0"},
      {"0,1\n0,1,2", "trace: line 2: '0,1,2' has 3 fields; expected 2: ms,count"},
      {"9,1\n8,1", "trace: line 2, field 1 (ms): 8 comes after 9"},
      {"0,100001", "trace: line 1: more than 100000 nodes are alive"},
      {"0,0", "trace: no node comes in the whole trace"},
      {"[0, \"add\"]", "line 1: '[0, \"add\"]' is not [ms, \"add\"|\"remove\"|..., {\"nodes\": [..]}]"},
      {"[1.5, \"add\", {}]", "trace: line 1, field 1 (ms): '1.5' is no whole number"},
      {"[0, 7, {}]", "trace: line 1, field 2 (action): '7' is no text"},
      {"[0, \"add\", {\"node\": []}]", "trace: line 1, field 3 (nodes): is no list of names"},
      {"[0, \"add\", []]", "trace: line 1, field 3 (nodes): is no list of names"},
      {"[0, \"add\", {\"nodes\": [3]}]", "trace: line 1, field 3 (nodes): '3' is no name"},
      {"2021-02-30, 11:00:00, 3", "trace: line 1, field 1 (date): '2021-02-30' is no day"},
      {"2021-02-03, 24:00:00, 3", "trace: line 1, field 2 (time): '24:00:00' is no time of day"},
      {"2021-02-03, 23:00:00, -3", "trace: line 1, field 3 (count): '-3' is no whole number"},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    CHECK_THAT(ErrorOf(c.text), Catch::Contains(c.error));
  }
  CHECK(LoadAvailability("/nowhere/trace.csv").status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("a capped trace has the smaller of its nodes and the cap alive at every moment", "[config][availability]") {
  CHECK(CapAvailability(Parsed("0,add,a\n0,add,b\n0,add,c\n5,remove,a\n6,remove,c\n7,remove,b\n8,add,d"), 2) ==
        Events{{0, true, "a"},
               {0, true, "b"},
               {5, false, "a"},
               {5, true, "c"},
               {6, false, "c"},
               {7, false, "b"},
               {8, true, "d"}});
  // One that waits and goes was never there.
  CHECK(CapAvailability(Parsed("0,add,a\n0,add,b\n1,remove,b\n2,remove,a"), 1) ==
        Events{{0, true, "a"}, {2, false, "a"}});
}

TEST_CASE("Bamboo's p3 trace has 344 events and up to 32 nodes", "[config][availability][real]") {
  const std::string path = TraceFile("bamboo/p3-trace.csv");
  if (path.empty()) return;
  const Events events = Loaded(path);
  CHECK(events.size() == 344);
  CHECK(std::count_if(events.begin(), events.end(), [](const auto& e) { return e.add; }) == 177);
  CHECK(MostAlive(events) == 32);
  CHECK(events.back() == AvailabilityEvent{40920000, false, "node172"});
  const Events capped = CapAvailability(events, 8);
  CHECK(MostAlive(capped) == 8);
  // At every event the live ones are min(nodes, 8), and nobody comes twice or goes unseen.
  std::set<std::string> all, live;
  std::size_t at = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    events[i].add ? (void)all.insert(events[i].node) : (void)all.erase(events[i].node);
    if (i + 1 < events.size() && events[i + 1].at_ms == events[i].at_ms) continue;
    for (; at < capped.size() && capped[at].at_ms <= events[i].at_ms; ++at) {
      if (capped[at].add) {
        REQUIRE(live.insert(capped[at].node).second);
      } else {
        REQUIRE(live.erase(capped[at].node) == 1);
      }
    }
    REQUIRE(live.size() == std::min<std::size_t>(all.size(), 8));
    REQUIRE(std::includes(all.begin(), all.end(), live.begin(), live.end()));
  }
}

TEST_CASE("the other real traces are read too", "[config][availability][real]") {
  struct Trace {
    std::string name;
    std::size_t most_alive;
  };
  for (const Trace& trace : std::vector<Trace>{{"parcae/p3.csv", 32},
                                               {"parcae/bert__trace_hh_55_65.txt", 32},
                                               {"parcae/bert__trace_hl_15_25.txt", 32},
                                               {"parcae/bert__trace_lh_80_90.txt", 0},
                                               {"parcae/bert__trace_ll_10_11.txt", 0},
                                               {"bamboo/a100x1-east1b.txt", 64}}) {
    const std::string path = TraceFile(trace.name);
    if (path.empty()) continue;
    INFO(path);
    const Events events = Loaded(path);
    CHECK(std::is_sorted(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.at_ms < b.at_ms; }));
    if (trace.most_alive != 0) CHECK(MostAlive(events) == trace.most_alive);
  }
}

}  // namespace
}  // namespace evenkeel
