#include "checkpoint/manifest.h"

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/layout.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"
#include "nlohmann/json.hpp"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;

// A field that is missing or of another type; stays within this file.
class FieldError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string CrcLine(std::string_view body) {
  return absl::StrFormat(",\n \"crc32c\": \"%08x\"\n}\n", Crc32c(AsBytes(body)));
}

// ---- writing

// JSON has no NaN and no infinity.
double Finite(std::string_view name, double value) {
  if (!std::isfinite(value)) throw FieldError(absl::StrCat(std::string(name), " is not finite"));
  return value;
}

bool IsUtf8(const std::string& bytes) {
  try {
    Json(bytes).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

Json ToJson(const TensorSpec& tensor) {
  const InitializerSpec& initializer = tensor.initializer;
  Json json;
  json["name"] = tensor.name;
  json["shape"] = std::vector<std::int64_t>(tensor.shape.dims().begin(), tensor.shape.dims().end());
  json["statistic"] = tensor.statistic;
  json["statistic_momentum"] = Finite("statistic_momentum", tensor.statistic_momentum);
  json["decay"] = tensor.decay;
  json["initializer"] = {{"kind", ToString(initializer.kind)},
                         {"value", Finite("initializer.value", initializer.value)},
                         {"scale", Finite("initializer.scale", initializer.scale)},
                         {"fan_in", initializer.fan_in},
                         {"fan_out", initializer.fan_out}};
  return json;
}

// One list of the optimizer's numbers for both directions.
struct OptimizerField {
  const char* name;
  float OptimizerSpec::*value;
};
constexpr std::array<OptimizerField, 13> kOptimizerFields = {{
    {"momentum", &OptimizerSpec::momentum},
    {"beta1", &OptimizerSpec::beta1},
    {"beta2", &OptimizerSpec::beta2},
    {"rho", &OptimizerSpec::rho},
    {"epsilon", &OptimizerSpec::epsilon},
    {"initial_accumulator", &OptimizerSpec::initial_accumulator},
    {"ftrl_l1", &OptimizerSpec::ftrl_l1},
    {"ftrl_l2", &OptimizerSpec::ftrl_l2},
    {"ftrl_learning_rate_power", &OptimizerSpec::ftrl_learning_rate_power},
    {"l2", &OptimizerSpec::l2},
    {"weight_decay", &OptimizerSpec::weight_decay},
    {"clip_value", &OptimizerSpec::clip_value},
    {"clip_norm", &OptimizerSpec::clip_norm},
}};

Json ToJson(const OptimizerSpec& optimizer) {
  Json json;
  json["kind"] = ToString(optimizer.kind);
  for (const OptimizerField& field : kOptimizerFields) json[field.name] = Finite(field.name, optimizer.*field.value);
  return json;
}

Json ToJson(const Manifest& manifest) {
  Json json;
  json["format_version"] = Manifest::kFormatVersion;
  json["job_id"] = manifest.job_id;
  json["spec_hash"] = manifest.spec_hash;
  json["term"] = manifest.term.value();
  json["generation"] = manifest.version.generation.value();
  json["commit"] = manifest.version.commit.value();
  json["created_unix_ms"] = manifest.created_unix_ms;
  json["final"] = manifest.final;
  json["seed"] = manifest.seed;
  json["samples_trained"] = manifest.samples_trained;
  json["epochs"] = Finite("epochs", manifest.epochs);
  json["parameter_floats"] = manifest.parameter_floats;
  json["total_floats"] = manifest.total_floats;
  json["parts"] = Json::array();
  for (const PartInfo& part : manifest.parts) {
    json["parts"].push_back(Json{{"file", part.file}, {"bytes", part.bytes}, {"crc32c", part.crc32c}});
  }
  json["tensors"] = Json::array();
  for (const TensorSpec& tensor : manifest.tensors) json["tensors"].push_back(ToJson(tensor));
  json["optimizer"] = ToJson(manifest.optimizer);
  json["experiment"] = manifest.experiment_json;
  json["data_fingerprint"] = manifest.data_fingerprint;
  json["data_statistics"] = manifest.data_statistics_json;
  const bool text = IsUtf8(manifest.chief_state);
  json["chief_state_encoding"] = text ? "utf-8" : "base64";
  json["chief_state"] = text ? manifest.chief_state : absl::Base64Escape(manifest.chief_state);
  return json;
}

// ---- reading

const Json& Field(const Json& json, const char* name) {
  auto it = json.find(name);
  if (it == json.end()) throw FieldError(absl::StrCat("has no field ", name));
  return *it;
}

[[noreturn]] void WrongType(const char* name, const char* wanted) {
  throw FieldError(absl::StrCat("field ", name, " is not ", wanted));
}

std::uint64_t Unsigned(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  if (!field.is_number_unsigned()) WrongType(name, "a whole number of at least 0");
  return field.get<std::uint64_t>();
}

std::int64_t Signed(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  const bool too_large = field.is_number_unsigned() &&
                         field.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  if (!field.is_number_integer() || too_large) WrongType(name, "a 64-bit whole number");
  return field.get<std::int64_t>();
}

double Number(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  if (!field.is_number()) WrongType(name, "a number");
  return field.get<double>();
}

float Float(const Json& json, const char* name) { return static_cast<float>(Number(json, name)); }

bool Bool(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  if (!field.is_boolean()) WrongType(name, "true or false");
  return field.get<bool>();
}

std::string Text(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  if (!field.is_string()) WrongType(name, "a string");
  return field.get<std::string>();
}

const Json& Array(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  if (!field.is_array()) WrongType(name, "a list");
  return field;
}

template <class Kind>
Kind KindNamed(const std::string& name, Kind last) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (name == ToString(static_cast<Kind>(i))) return static_cast<Kind>(i);
  }
  throw FieldError(absl::StrCat("field kind has the unknown value \"", name.substr(0, 100), "\""));
}

TensorSpec TensorFrom(const Json& json) {
  TensorSpec tensor;
  tensor.name = Text(json, "name");
  std::vector<std::int64_t> dims;
  for (const Json& dim : Array(json, "shape")) {
    if (!dim.is_number_unsigned() || dims.size() == 32) WrongType("shape", "a list of up to 32 sizes");
    dims.push_back(dim.get<std::int64_t>());
  }
  tensor.shape = Shape(dims);
  tensor.statistic = Bool(json, "statistic");
  tensor.statistic_momentum = Float(json, "statistic_momentum");
  tensor.decay = Bool(json, "decay");
  const Json& initializer = Field(json, "initializer");
  tensor.initializer.kind = KindNamed(Text(initializer, "kind"), InitializerSpec::Kind::kLecunNormal);
  tensor.initializer.value = Float(initializer, "value");
  tensor.initializer.scale = Float(initializer, "scale");
  tensor.initializer.fan_in = Signed(initializer, "fan_in");
  tensor.initializer.fan_out = Signed(initializer, "fan_out");
  return tensor;
}

PartInfo PartFrom(const Json& json) {
  PartInfo part;
  part.file = Text(json, "file");
  // A manifest must not lead out of its folder.
  if (part.file.empty() || part.file.find('/') != std::string::npos || part.file.starts_with('.')) {
    throw FieldError(absl::StrCat("names a part \"", part.file.substr(0, 200), "\", which is not a plain file name"));
  }
  part.bytes = Unsigned(json, "bytes");
  const std::uint64_t crc = Unsigned(json, "crc32c");
  if (crc > std::numeric_limits<std::uint32_t>::max()) WrongType("crc32c", "a 32-bit number");
  part.crc32c = static_cast<std::uint32_t>(crc);
  return part;
}

std::string ChiefStateFrom(const Json& json) {
  const std::string encoding = Text(json, "chief_state_encoding");
  std::string state = Text(json, "chief_state");
  if (encoding == "utf-8") return state;
  std::string bytes;
  if (encoding != "base64" || !absl::Base64Unescape(state, &bytes)) {
    throw FieldError("field chief_state is neither utf-8 nor base64");
  }
  return bytes;
}

Manifest ManifestFrom(const Json& json) {
  Manifest manifest;
  manifest.job_id = Text(json, "job_id");
  manifest.spec_hash = Text(json, "spec_hash");
  manifest.term = Term(Unsigned(json, "term"));
  manifest.version.generation = Generation(Unsigned(json, "generation"));
  manifest.version.commit = CommitNumber(Unsigned(json, "commit"));
  manifest.created_unix_ms = Signed(json, "created_unix_ms");
  manifest.final = Bool(json, "final");
  manifest.seed = Unsigned(json, "seed");
  manifest.samples_trained = Signed(json, "samples_trained");
  manifest.epochs = Number(json, "epochs");
  manifest.parameter_floats = Signed(json, "parameter_floats");
  manifest.total_floats = Signed(json, "total_floats");
  for (const Json& part : Array(json, "parts")) manifest.parts.push_back(PartFrom(part));
  for (const Json& tensor : Array(json, "tensors")) manifest.tensors.push_back(TensorFrom(tensor));
  const Json& optimizer = Field(json, "optimizer");
  manifest.optimizer.kind = KindNamed(Text(optimizer, "kind"), OptimizerSpec::Kind::kFtrl);
  for (const OptimizerField& field : kOptimizerFields) manifest.optimizer.*field.value = Float(optimizer, field.name);
  manifest.experiment_json = Text(json, "experiment");
  manifest.data_fingerprint = Text(json, "data_fingerprint");
  manifest.data_statistics_json = Text(json, "data_statistics");
  manifest.chief_state = ChiefStateFrom(json);
  return manifest;
}

}  // namespace

std::string ManifestPath(const std::string& model_dir, Version version) {
  return JoinPath(CheckpointFolder(model_dir, version), "manifest.json");
}

absl::StatusOr<std::string> SerializeManifest(const Manifest& manifest) {
  auto refuse = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("[write manifest] ", CheckpointName(manifest.version), ": ", std::string(what)));
  };
  if (auto places = PlaceTensors(manifest); !places.ok()) return refuse(std::string(places.status().message()));
  std::string text;
  try {
    text = ToJson(manifest).dump(1);
    // Whatever passes here can be read: the same checks run on both sides.
    for (const PartInfo& part : manifest.parts) PartFrom({{"file", part.file}, {"bytes", part.bytes}, {"crc32c", 0u}});
  } catch (const FieldError& error) {
    return refuse(error.what());
  } catch (const Json::exception& error) {
    return refuse(error.what());
  }
  text.resize(text.rfind('\n'));  // the closing brace follows the checksum
  text += CrcLine(text);
  if (text.size() > kMaxManifestBytes) {
    return refuse(absl::StrCat(text.size(), " bytes; at most ", kMaxManifestBytes, " are allowed"));
  }
  return text;
}

absl::StatusOr<Manifest> ParseManifest(std::string_view text, const std::string& path) {
  auto damaged = [&](std::string_view what) {
    return absl::DataLossError(absl::StrCat("[read manifest] ", path, ": ", std::string(what)));
  };
  const std::size_t crc_bytes = CrcLine("").size();
  if (text.size() < crc_bytes ||
      text.substr(text.size() - crc_bytes) != CrcLine(text.substr(0, text.size() - crc_bytes))) {
    return damaged("its checksum does not match its contents; it was cut short or changed");
  }
  try {
    const Json json = Json::parse(text);
    const std::uint64_t format = Unsigned(json, "format_version");
    if (format != static_cast<std::uint64_t>(Manifest::kFormatVersion)) {
      return absl::InvalidArgumentError(absl::StrCat("[read manifest] ", path, ": format version ", format,
                                                     "; this program reads version ", Manifest::kFormatVersion));
    }
    Manifest manifest = ManifestFrom(json);
    if (auto places = PlaceTensors(manifest); !places.ok()) return damaged(std::string(places.status().message()));
    return manifest;
  } catch (const FieldError& error) {
    return damaged(error.what());
  } catch (const Json::exception& error) {
    return damaged(error.what());
  }
}

}  // namespace evenkeel
