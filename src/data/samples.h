// A source's samples as decoded, before normalisation: what every reader makes and every set is built from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "evenkeel/data/dataset.h"

namespace evenkeel::data {

// Where a sample came from.
struct Place {
  std::int32_t file = 0;
  std::int64_t record = 0;  // line from 1 (text), record from 0 (binary)
};

enum class Content { kBytes, kDense, kSparse };

struct Samples {
  std::string format;           // "csv"
  std::string unit = "record";  // or "line"
  std::vector<std::string> files;
  std::vector<Place> places;  // of each sample's label

  ExampleSpec spec;
  Content content = Content::kDense;
  std::string bytes;                      // kBytes: size * spec.features.elements(); as read, see Bytes()
  std::vector<float> values;              // kDense: likewise; kSparse: of the entries
  std::vector<std::int64_t> row_offsets;  // kSparse: size + 1
  std::vector<std::int32_t> columns;      // kSparse: ascending within a row
  std::vector<bool>
      indicator;               // kDense: features that are 0 or 1 for a category and are left as they are; may be empty
  std::vector<double> labels;  // size * spec.label_width

  std::span<const std::uint8_t> Bytes() const {
    return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
  }
  std::int64_t size() const { return static_cast<std::int64_t>(places.size()); }
  // Keeps the rows listed (ascending).
  void Select(std::span<const std::int64_t> rows);
  // "[csv] wine.csv line 12"
  std::string Where(std::int64_t sample) const;
};

// "[format] path unit record"
std::string WhereIn(absl::string_view format, absl::string_view path, absl::string_view unit, std::int64_t record);

// Keeps `width` neighbouring elements for each of the rows listed (ascending).
template <class Elements>
void SelectRows(Elements& elements, std::int64_t width, std::span<const std::int64_t> rows) {
  std::int64_t to = 0;
  for (std::int64_t row : rows) {
    for (std::int64_t i = 0; i < width; ++i) elements[to++] = std::move(elements[row * width + i]);
  }
  elements.resize(static_cast<std::size_t>(to));
}

// The largest set that is laid out densely in memory.
constexpr std::int64_t kMaxDenseFloats = std::int64_t{4} << 30;

}  // namespace evenkeel::data
