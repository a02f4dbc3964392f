// Initialisers as text.
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "config/concat.h"
#include "evenkeel/config/experiment.h"

namespace evenkeel {
namespace {

using config_internal::Concat;

using Kind = InitializerSpec::Kind;

constexpr std::array<std::pair<std::string_view, Kind>, 6> kPlain = {{{"zeros", Kind::kZeros},
                                                                      {"glorot_uniform", Kind::kGlorotUniform},
                                                                      {"glorot_normal", Kind::kGlorotNormal},
                                                                      {"he_uniform", Kind::kHeUniform},
                                                                      {"he_normal", Kind::kHeNormal},
                                                                      {"lecun_normal", Kind::kLecunNormal}}};
constexpr std::array<std::pair<std::string_view, Kind>, 4> kWithNumber = {{{"normal", Kind::kNormal},
                                                                           {"truncated_normal", Kind::kTruncatedNormal},
                                                                           {"uniform", Kind::kUniform},
                                                                           {"constant", Kind::kConstant}}};

}  // namespace

absl::StatusOr<InitializerSpec> ParseInitializer(std::string_view text) {
  InitializerSpec spec;
  for (const auto& [name, kind] : kPlain) {
    if (text != name) continue;
    spec.kind = kind;
    return spec;
  }
  const std::size_t colon = text.find(':');
  float number = 0;
  if (colon != text.npos && absl::SimpleAtof(std::string(text.substr(colon + 1)), &number) && std::isfinite(number)) {
    for (const auto& [name, kind] : kWithNumber) {
      if (text.substr(0, colon) != name) continue;
      spec.kind = kind;
      if (kind == Kind::kConstant) {
        spec.value = number;
        return spec;
      }
      if (number < 0) break;
      spec.scale = number;
      return spec;
    }
  }
  return absl::InvalidArgumentError(
      Concat("'", text,
             "' is no initializer; allowed: zeros, glorot_uniform, glorot_normal, he_uniform, he_normal, "
             "lecun_normal, normal:STDDEV, truncated_normal:STDDEV, uniform:LIMIT, constant:VALUE"));
}

}  // namespace evenkeel
