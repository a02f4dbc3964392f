#include "replay/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/status.h"
#include "replay/version_window.h"

namespace evenkeel::replay {
namespace {

// A slot follows single gradients, which rounding moves much more than the parameters.
constexpr double kSlotFactor = 100;

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Sums over the tensors of an array.
class ArrayComparer {
 public:
  explicit ArrayComparer(std::string name) { comparison_.name = std::move(name); }

  void Add(const std::string& tensor, std::span<const float> recorded, std::span<const float> recomputed) {
    values_ += static_cast<std::int64_t>(recorded.size());
    for (std::size_t i = 0; i < recorded.size(); ++i) {
      const double was = static_cast<double>(recorded[i]), is = static_cast<double>(recomputed[i]);
      recorded_squared_ += was * was;
      if (SameBits(recorded[i], recomputed[i])) continue;
      const double difference = std::abs(is - was);
      squared_ += difference * difference;
      if (differing_++ == 0) {
        first_ = absl::StrFormat("%s[%d] is %.9g, recomputed %.9g", tensor, i, was, is);
      }
      if (!(difference <= comparison_.max_absolute)) {
        comparison_.max_absolute = difference;
        largest_in_ = tensor;
      }
    }
  }

  // The sentence of a difference goes to `differences`.
  ArrayComparison Finish(bool bits, double tolerance, std::vector<std::string>& differences) {
    comparison_.same_bits = differing_ == 0;
    if (differing_ > 0) {
      comparison_.relative =
          recorded_squared_ > 0 ? std::sqrt(squared_ / recorded_squared_) : std::numeric_limits<double>::infinity();
    }
    const bool agrees = bits ? comparison_.same_bits : comparison_.same_bits || comparison_.relative <= tolerance;
    if (!agrees) {
      differences.push_back(absl::StrFormat(
          "%s: %d of %d values differ, first %s; at most by %.3g (%s), by %.3g of all", comparison_.name, differing_,
          values_, first_, comparison_.max_absolute, largest_in_, comparison_.relative));
    }
    return std::move(comparison_);
  }

 private:
  ArrayComparison comparison_;
  std::int64_t values_ = 0, differing_ = 0;
  double squared_ = 0, recorded_squared_ = 0;
  std::string first_, largest_in_;
};

}  // namespace

absl::StatusOr<Compared> CompareWithCheckpoint(const CheckpointReader& reader, const ps::Shard& shard, bool bits,
                                               double tolerance) {
  const ParameterLayout& layout = *shard.place().layout;
  const Manifest& manifest = reader.manifest();
  Compared compared;
  CheckpointComparison& comparison = compared.comparison;
  comparison.version = manifest.version;
  comparison.bits_expected = bits;
  const bool same_model = std::equal(manifest.tensors.begin(), manifest.tensors.end(), layout.tensors().begin(),
                                     layout.tensors().end(), [](const TensorSpec& a, const TensorSpec& b) {
                                       return a.name == b.name && a.shape == b.shape && a.statistic == b.statistic;
                                     });
  if (!same_model || manifest.total_floats != layout.total_floats()) {
    compared.differences.push_back("it holds other tensors than the experiment's model");
    return compared;
  }

  std::vector<float> recomputed(static_cast<std::size_t>(layout.total_floats())), recorded(recomputed.size());
  const auto compare = [&](const std::string& array, const std::string& name, bool statistics) {
    ArrayComparer comparer(name);
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      const TensorSpec& tensor = layout.tensors()[t];
      if (tensor.statistic != statistics) continue;
      const TensorPlace& place = layout.places()[t];
      const auto begin = static_cast<std::size_t>(place.offset), count = static_cast<std::size_t>(place.count);
      const std::span<float> target = std::span(recorded).subspan(begin, count);
      EK_RETURN_IF_ERROR(reader.Read(array, place.offset, target));
      comparer.Add(tensor.name, target, std::span(recomputed).subspan(begin, count));
    }
    const double allowed = array == "parameters" ? tolerance : kSlotFactor * tolerance;
    comparison.arrays.push_back(comparer.Finish(bits, allowed, compared.differences));
    return absl::OkStatus();
  };

  CopyFlat(shard, recomputed);
  EK_RETURN_IF_ERROR(compare("parameters", "parameters", false));
  if (layout.total_floats() > layout.parameter_floats()) EK_RETURN_IF_ERROR(compare("parameters", "statistics", true));
  const std::vector<std::string> slots = SlotNames(shard.place().optimizer);
  if (slots != SlotNames(manifest.optimizer)) {
    compared.differences.push_back(absl::StrCat("it holds slots of ", ToString(manifest.optimizer.kind), ", not of ",
                                                ToString(shard.place().optimizer.kind)));
  } else {
    for (std::size_t s = 0; s < slots.size(); ++s) {
      CopyFlatSlot(shard, static_cast<int>(s), recomputed);
      const std::string array = absl::StrCat("slot.", slots[s]);
      EK_RETURN_IF_ERROR(compare(array, array, false));
    }
  }
  comparison.agrees = compared.differences.empty();
  return compared;
}

}  // namespace evenkeel::replay
