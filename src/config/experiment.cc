#include "evenkeel/config/experiment.h"

#include <string>
#include <vector>

#include "config/concat.h"
#include "config/convert.h"
#include "config/json_text.h"
#include "config/overrides.h"
#include "config/rules.h"
#include "config/schema.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"
#include "experiment.pb.h"
#include "nlohmann/json.hpp"

namespace evenkeel {
namespace {

constexpr std::int64_t kGradnormWindow = 50;

using config_internal::Concat;
using nlohmann::json;

// Written again by every process, so it may depend on nothing but the fields.
std::string Canonical(const config::Experiment& message) {
  json document = config_internal::PrintMessage(message);
  document["model"].erase("nodes");  // they are in layers
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<Experiment> Parse(std::string_view text, const std::vector<std::string>& overrides) {
  json document;
  EK_RETURN_IF_ERROR(config_internal::ParseJson(text, document));
  for (const std::string& item : overrides) EK_RETURN_IF_ERROR(config_internal::ApplyOverride(item, document));
  config::Experiment message;
  EK_RETURN_IF_ERROR(config_internal::ReadMessage(document, "", message));
  if (!message.batching().has_mode()) {  // whoever says anything about batches wants them to follow speeds
    message.mutable_batching()->set_mode(document.contains("batching") ? config::Batching::MODE_MODEL
                                                                       : config::Batching::MODE_OFF);
  }
  if (!message.batching().has_gradnorm_window()) {
    message.mutable_batching()->set_gradnorm_window(document.contains("batching") ? kGradnormWindow : 0);
  }
  EK_RETURN_IF_ERROR(config_internal::CompleteModel(*message.mutable_model()));
  EK_RETURN_IF_ERROR(config_internal::CompleteInput(message));
  EK_RETURN_IF_ERROR(config_internal::CompleteTrain(message));
  EK_RETURN_IF_ERROR(config_internal::CompleteEval(message));
  EK_RETURN_IF_ERROR(config_internal::CompleteRest(message));
  Experiment out = config_internal::ToExperiment(message);
  out.canonical_json = Canonical(message);
  out.spec_hash = Sha256Hex(out.canonical_json);
  return out;
}

}  // namespace

const char* ToString(SyncConfig::Mode mode) {
  switch (mode) {
    case SyncConfig::Mode::kBsp:
      return "bsp";
    case SyncConfig::Mode::kAsp:
      return "asp";
    case SyncConfig::Mode::kSsp:
      return "ssp";
  }
  return "unknown";
}

absl::StatusOr<Experiment> ParseExperiment(std::string_view json, std::string_view origin,
                                           const std::vector<std::string>& overrides) {
  auto experiment = Parse(json, overrides);
  if (experiment.ok()) return experiment;
  return absl::Status(experiment.status().code(), Concat("experiment ", origin, ": ", experiment.status().message()));
}

absl::StatusOr<Experiment> LoadExperiment(const std::string& path, const std::vector<std::string>& overrides) {
  const auto text = Storage::Posix().Read(path, config_internal::kMaxFileBytes);
  if (!text.ok()) return Annotate(text.status(), "experiment");
  return ParseExperiment(*text, path, overrides);
}

}  // namespace evenkeel
