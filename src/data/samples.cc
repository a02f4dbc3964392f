#include "data/samples.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace evenkeel::data {

void Samples::Select(std::span<const std::int64_t> rows) {
  std::int64_t elements = spec.features.elements();
  switch (content) {
    case Content::kBytes:
      SelectRows(bytes, elements, rows);
      break;
    case Content::kDense:
      SelectRows(values, elements, rows);
      break;
    case Content::kSparse: {
      std::vector<std::int64_t> offsets = {0};
      offsets.reserve(rows.size() + 1);
      std::int64_t to = 0;
      for (std::int64_t row : rows) {
        for (std::int64_t i = row_offsets[row]; i < row_offsets[row + 1]; ++i, ++to) {
          columns[to] = columns[i];
          values[to] = values[i];
        }
        offsets.push_back(to);
      }
      columns.resize(static_cast<std::size_t>(to));
      values.resize(static_cast<std::size_t>(to));
      row_offsets = std::move(offsets);
      break;
    }
  }
  SelectRows(labels, spec.label_width, rows);
  SelectRows(places, 1, rows);
}

std::string Samples::Where(std::int64_t sample) const {
  const Place& place = places[static_cast<std::size_t>(sample)];
  return WhereIn(format, files[static_cast<std::size_t>(place.file)], unit, place.record);
}

std::string WhereIn(absl::string_view format, absl::string_view path, absl::string_view unit, std::int64_t record) {
  return absl::StrCat("[", format, "] ", path, " ", unit, " ", record);
}

}  // namespace evenkeel::data
