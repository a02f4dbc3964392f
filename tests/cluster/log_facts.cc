// Prints a model_dir's commit log for the tests in Python, a JSON object a record, oldest first.
//
//   log_facts MODEL_DIR
#include <iostream>
#include <string>

#include "evenkeel/core/storage.h"
#include "evenkeel/protocol/commit_log.h"
#include "nlohmann/json.hpp"

namespace {

using Json = nlohmann::json;
using namespace evenkeel;

Json ToJson(const CommitRecord& record) {
  Json json{{"record", "commit"},
            {"generation", record.decision.version.generation.value()},
            {"commit", record.decision.version.commit.value()},
            {"samples", record.decision.samples},
            {"updates", Json::array()}};
  for (const CommittedUpdate& update : record.decision.updates) {
    Json positions = Json::array();
    for (const PositionRange& range : update.positions) positions.push_back({range.begin, range.end});
    Json versions = Json::array();
    for (const Version& version : update.computed_on) versions.push_back(version.commit.value());
    json["updates"].push_back({{"incarnation", update.update.incarnation.value()},
                               {"rank", update.rank.value()},
                               {"epoch", update.epoch.value()},
                               {"positions", positions},
                               {"clock", update.clock},
                               {"bound_at", update.bound_at.value()},
                               {"computed_on", versions}});
  }
  return json;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const absl::Status status = ReadLog(Storage::Posix(), argv[1], [](const LogFile&, const LogRecord& record) {
    if (const auto* commit = std::get_if<CommitRecord>(&record)) std::cout << ToJson(*commit) << "\n";
    if (const auto* admission = std::get_if<AdmissionRecord>(&record)) {
      std::cout << Json{{"record", "admission"},
                        {"incarnation", admission->incarnation.value()},
                        {"name", admission->name},
                        {"rank", admission->rank.value()}}
                << "\n";
    }
    if (const auto* fence = std::get_if<FenceRecord>(&record)) {
      std::cout << Json{{"record", "fence"}, {"incarnation", fence->incarnation.value()}} << "\n";
    }
    if (const auto* rollback = std::get_if<RollbackRecord>(&record)) {
      std::cout << Json{{"record", "rollback"},
                        {"generation", rollback->generation.value()},
                        {"commit", rollback->checkpoint.commit.value()}}
                << "\n";
    }
    return absl::OkStatus();
  });
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
