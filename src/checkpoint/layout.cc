#include "checkpoint/layout.h"

#include <unordered_set>

#include "absl/strings/str_cat.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kTensorAlignmentFloats = 16;
// 4 TiB of floats: far beyond any server, far below an overflow.
constexpr std::int64_t kMaxFloats = std::int64_t{1} << 40;

absl::StatusOr<std::int64_t> Elements(const TensorSpec& tensor) {
  std::int64_t elements = 1;
  for (std::int64_t dim : tensor.shape.dims()) {
    if (dim < 0 || __builtin_mul_overflow(elements, dim, &elements) || elements > kMaxFloats) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.name, "\" has shape ", tensor.shape.ToString()));
    }
  }
  return elements;
}

}  // namespace

absl::StatusOr<std::vector<FlatPlace>> PlaceTensors(const Manifest& manifest) {
  if (manifest.parameter_floats < 0 || manifest.total_floats < manifest.parameter_floats ||
      manifest.total_floats > kMaxFloats) {
    return absl::InvalidArgumentError(absl::StrCat("parameter_floats ", manifest.parameter_floats, " and total_floats ",
                                                   manifest.total_floats, " are not 0 <= parameter <= total <= 2^40"));
  }
  std::vector<FlatPlace> places;
  places.reserve(manifest.tensors.size());
  std::unordered_set<std::string> names;
  std::int64_t next = 0;
  bool in_statistics = false;
  for (const TensorSpec& tensor : manifest.tensors) {
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\" occurs twice"));
    }
    if (tensor.statistic && !in_statistics) next = manifest.parameter_floats;
    if (!tensor.statistic && in_statistics) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\" stands behind a statistic"));
    }
    in_statistics = tensor.statistic;
    absl::StatusOr<std::int64_t> elements = Elements(tensor);
    if (!elements.ok()) return elements.status();
    const std::int64_t limit = in_statistics ? manifest.total_floats : manifest.parameter_floats;
    if (next > limit || *elements > limit - next) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\" takes floats ", next, " to ",
                                                     next + *elements, ", but its segment ends at ", limit));
    }
    places.push_back({next, *elements});
    next = (next + *elements + kTensorAlignmentFloats - 1) / kTensorAlignmentFloats * kTensorAlignmentFloats;
  }
  return places;
}

}  // namespace evenkeel
