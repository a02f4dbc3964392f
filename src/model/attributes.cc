#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "evenkeel/core/status.h"
#include "evenkeel/model/layer.h"
#include "model/builtin_layers.h"

namespace evenkeel {
namespace {

std::string Render(const AttributeValue& value) {
  struct Renderer {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return absl::StrCat(v); }
    std::string operator()(double v) const { return absl::StrCat(v); }
    std::string operator()(const std::string& v) const { return absl::StrCat("\"", v, "\""); }
    std::string operator()(const std::vector<std::int64_t>& v) const {
      return absl::StrCat("[", absl::StrJoin(v, ","), "]");
    }
    std::string operator()(const std::vector<double>& v) const { return absl::StrCat("[", absl::StrJoin(v, ","), "]"); }
    std::string operator()(const std::vector<std::string>& v) const {
      return absl::StrCat("[\"", absl::StrJoin(v, "\",\""), "\"]");
    }
  };
  return std::visit(Renderer{}, value);
}

// The value by name; `wanted` describes the type for messages.
absl::StatusOr<const AttributeValue*> Find(const LayerConfig& config, const std::string& name, const char* wanted) {
  auto found = config.attributes.find(name);
  if (found == config.attributes.end()) {
    return LayerError(LayerLabel(config), absl::StrCat("attribute '", name, "' is missing; ", wanted, " is wanted"));
  }
  return &found->second;
}

template <class T>
absl::StatusOr<T> Get(const LayerConfig& config, const std::string& name, const char* wanted) {
  EK_ASSIGN_OR_RETURN(const AttributeValue* value, Find(config, name, wanted));
  if (const T* typed = std::get_if<T>(value)) return *typed;
  return LayerError(LayerLabel(config),
                    absl::StrCat("attribute '", name, "' is ", Render(*value), "; ", wanted, " is wanted"));
}

}  // namespace

absl::StatusOr<std::int64_t> IntAttribute(const LayerConfig& config, const std::string& name) {
  return Get<std::int64_t>(config, name, "an integer");
}

absl::StatusOr<double> FloatAttribute(const LayerConfig& config, const std::string& name) {
  EK_ASSIGN_OR_RETURN(const AttributeValue* value, Find(config, name, "a number"));
  if (const auto* integer = std::get_if<std::int64_t>(value)) return static_cast<double>(*integer);
  return Get<double>(config, name, "a number");
}

absl::StatusOr<bool> BoolAttribute(const LayerConfig& config, const std::string& name) {
  return Get<bool>(config, name, "true or false");
}

absl::StatusOr<std::string> StringAttribute(const LayerConfig& config, const std::string& name) {
  return Get<std::string>(config, name, "a string");
}

absl::StatusOr<std::vector<std::int64_t>> IntsAttribute(const LayerConfig& config, const std::string& name) {
  return Get<std::vector<std::int64_t>>(config, name, "a list of integers");
}

std::string LayerLabel(const LayerConfig& config) { return absl::StrCat(config.type, " ", config.name); }

absl::Status LayerError(std::string_view label, std::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("[", std::string(label), "] ", std::string(message)));
}

absl::Status ExpectOneInput(std::string_view label, std::span<const Shape> inputs) {
  if (inputs.size() == 1) return absl::OkStatus();
  return LayerError(label, absl::StrCat("has ", inputs.size(), " inputs; it takes one"));
}

absl::StatusOr<InitializerSpec> MakeInitializer(const LayerConfig& config, std::string_view text, std::int64_t fan_in,
                                                std::int64_t fan_out) {
  absl::StatusOr<InitializerSpec> spec = ParseInitializer(text);
  if (!spec.ok()) return Annotate(spec.status(), LayerLabel(config));
  spec->fan_in = fan_in;
  spec->fan_out = fan_out;
  return spec;
}

TensorSpec MakeOffset(std::string name, std::int64_t elements, float value) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.shape = Shape{elements};
  if (value != 0) {
    spec.initializer.kind = InitializerSpec::Kind::kConstant;
    spec.initializer.value = value;
  }
  spec.decay = false;
  return spec;
}

Tensor SavedTensor(const LayerContext& context, std::int64_t offset, Shape shape) {
  const DType dtype = context.backend->dtype();
  auto* base = static_cast<std::byte*>(context.saved);
  return Tensor{base + static_cast<std::size_t>(offset) * SizeOf(dtype), std::move(shape), dtype};
}

}  // namespace evenkeel
