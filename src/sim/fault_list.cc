// A list of faults as JSON, and as text.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "evenkeel/sim/simulation.h"
#include "nlohmann/json.hpp"

namespace evenkeel::sim {
namespace {

using Json = nlohmann::ordered_json;

struct KindName {
  FaultKind kind;
  const char* name;
};
constexpr std::array<KindName, 16> kKinds = {{{FaultKind::kKill, "kill"},
                                              {FaultKind::kVanish, "vanish"},
                                              {FaultKind::kPause, "pause"},
                                              {FaultKind::kLeave, "leave"},
                                              {FaultKind::kJoin, "join"},
                                              {FaultKind::kBreak, "break"},
                                              {FaultKind::kPartition, "partition"},
                                              {FaultKind::kSlow, "slow"},
                                              {FaultKind::kReconnect, "reconnect"},
                                              {FaultKind::kManifestFailure, "manifest_failure"},
                                              {FaultKind::kSnapshotFailure, "snapshot_failure"},
                                              {FaultKind::kStop, "stop"},
                                              {FaultKind::kCrashChief, "crash_chief"},
                                              {FaultKind::kCrashAll, "crash_all"},
                                              {FaultKind::kDrain, "drain"},
                                              {FaultKind::kScale, "scale"}}};

std::string KindNames() {
  std::string names;
  for (const KindName& entry : kKinds) absl::StrAppend(&names, names.empty() ? "" : ", ", entry.name);
  return names;
}

bool IsNode(const std::string& node) {
  const std::size_t colon = node.find(':');
  if (colon == std::string::npos) return node == "chief";
  const std::string role = node.substr(0, colon);
  std::uint32_t number = 0;
  if (!absl::SimpleAtoi(node.substr(colon + 1), &number)) return false;
  return role == "worker" || (role == "ps" && number < kMostServers);
}

constexpr std::int64_t kMaxMs = 3'600'000;

std::string NodeNames() { return absl::StrCat("chief, worker:N or ps:N (N below ", kMostServers, ")"); }

// What a field's value is to be; "" where there is no such field.
std::string Expected(const std::string& field) {
  if (field == "at_ms" || field == "for_ms") {
    return absl::StrCat("a whole number of milliseconds from 0 to ", kMaxMs, ", an hour");
  }
  if (field == "count") return absl::StrCat("a whole number from 1 to ", kMostServers);
  if (field == "share") return "a number from 0 to 1";
  if (field == "node" || field == "peer") return absl::StrCat("a text: ", NodeNames());
  if (field == "kind") return absl::StrCat("one of ", KindNames());
  return "";
}

// False: the value is not of the field.
bool Take(const std::string& field, const Json& value, Fault& fault) {
  const auto whole = [&value](std::int64_t& into) {
    const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() <= kMaxMs;
    if (fits) into = value.get<std::int64_t>();
    return fits;
  };
  const auto text = [&value](std::string& into) {
    if (value.is_string()) into = value.get<std::string>();
    return value.is_string();
  };
  if (field == "at_ms") return whole(fault.at_ms);
  if (field == "for_ms") return whole(fault.for_ms);
  if (field == "count") return whole(fault.count);
  if (field == "node") return text(fault.node);
  if (field == "peer") return text(fault.peer);
  if (field == "share") {
    const bool fits = value.is_number() && value.get<double>() >= 0 && value.get<double>() <= 1;
    if (fits) fault.share = value.get<double>();
    return fits;
  }
  for (const KindName& entry : kKinds) {
    if (value != entry.name) continue;
    fault.kind = entry.kind;
    return true;
  }
  return false;
}

// "" or why nothing like it can happen.
std::string Problem(const Fault& fault) {
  const bool of_job = fault.kind == FaultKind::kScale || fault.kind == FaultKind::kStop ||
                      fault.kind == FaultKind::kManifestFailure || fault.kind == FaultKind::kCrashChief ||
                      fault.kind == FaultKind::kCrashAll;
  const bool of_pair =
      fault.kind == FaultKind::kBreak || fault.kind == FaultKind::kPartition || fault.kind == FaultKind::kSlow;
  const std::string nodes = NodeNames();
  const std::string what = ToString(fault.kind);
  if (!of_job && fault.node.empty()) return absl::StrCat(what, " needs a node: ", nodes);
  if (of_pair && fault.peer.empty()) return absl::StrCat(what, " needs a peer: ", nodes);
  for (const auto& [field, node] : {std::pair("node", fault.node), std::pair("peer", fault.peer)}) {
    if (!node.empty() && !IsNode(node)) return absl::StrCat(field, " is '", node, "'; it is ", nodes);
  }
  const bool of_any = of_job || of_pair || fault.kind == FaultKind::kPause;
  if (!of_any && fault.node == "chief") {
    return absl::StrCat(what, " is not for the chief; it has pause, stop, crash_chief and crash_all");
  }
  if (fault.kind == FaultKind::kSnapshotFailure && fault.node[0] != 'p') {
    return absl::StrCat("node is '", fault.node, "'; only servers, ps:N, write snapshots");
  }
  if (of_pair && fault.node == fault.peer) return absl::StrCat("node and peer are both ", fault.node);
  if (fault.kind == FaultKind::kScale && (fault.count < 1 || fault.count > kMostServers)) {
    return absl::StrCat("count is ", fault.count, "; the servers are 1 to ", kMostServers);
  }
  const bool lasts =
      fault.kind == FaultKind::kPause || fault.kind == FaultKind::kPartition || fault.kind == FaultKind::kSlow;
  if (lasts && fault.for_ms == 0) return absl::StrCat(what, " needs for_ms, above 0");
  return "";
}

}  // namespace

const char* ToString(FaultKind kind) {
  for (const KindName& entry : kKinds) {
    if (entry.kind == kind) return entry.name;
  }
  return "unknown";
}

std::string ToString(const Fault& fault) {
  return absl::StrCat("at ", fault.at_ms, " ms ", ToString(fault.kind), fault.node.empty() ? "" : " ", fault.node,
                      fault.peer.empty() ? "" : " ", fault.peer,
                      fault.for_ms == 0 ? "" : absl::StrCat(" for ", fault.for_ms, " ms"),
                      fault.share == 0 ? "" : absl::StrCat(" share ", fault.share),
                      fault.count == 0 ? "" : absl::StrCat(" count ", fault.count));
}

std::string FaultsToJson(const std::vector<Fault>& faults) {
  Json list = Json::array();
  for (const Fault& fault : faults) {
    Json entry{{"at_ms", fault.at_ms}, {"kind", ToString(fault.kind)}};
    if (!fault.node.empty()) entry["node"] = fault.node;
    if (!fault.peer.empty()) entry["peer"] = fault.peer;
    if (fault.for_ms != 0) entry["for_ms"] = fault.for_ms;
    if (fault.share != 0) entry["share"] = fault.share;
    if (fault.count != 0) entry["count"] = fault.count;
    list.push_back(std::move(entry));
  }
  std::string text = "[";
  for (std::size_t i = 0; i < list.size(); ++i) absl::StrAppend(&text, i == 0 ? "\n " : ",\n ", list[i].dump());
  return text + "\n]\n";
}

absl::StatusOr<std::vector<Fault>> FaultsFromJson(std::string_view json, std::string_view origin) {
  auto wrong = [&](std::size_t entry, std::string what) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(origin), ": fault ", entry, ": ", what));
  };
  const Json list = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(origin), ": not a JSON list of faults"));
  }
  std::vector<Fault> faults;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_object()) return wrong(i, "not an object");
    Fault fault;
    for (const auto& [key, value] : list[i].items()) {
      const std::string expected = Expected(key);
      if (expected.empty()) {
        return wrong(i,
                     absl::StrCat("'", key, "' is no field; they are at_ms, kind, node, peer, for_ms, share, count"));
      }
      if (!Take(key, value, fault))
        return wrong(i, absl::StrCat("'", key, "': ", value.dump(), "; expected ", expected));
    }
    if (!list[i].contains("kind")) return wrong(i, absl::StrCat("it has no 'kind': ", Expected("kind")));
    if (std::string problem = Problem(fault); !problem.empty()) return wrong(i, std::move(problem));
    faults.push_back(std::move(fault));
  }
  std::stable_sort(faults.begin(), faults.end(), [](const Fault& a, const Fault& b) { return a.at_ms < b.at_ms; });
  return faults;
}

}  // namespace evenkeel::sim
