// Numbers and lines of text files.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace evenkeel::data {

enum class NumberKind { kFinite, kNotFinite, kNotANumber };
struct Number {
  double value = 0;
  NumberKind kind = NumberKind::kNotANumber;
};
// The whole text (but for spaces around it) as a decimal number that float32 can hold; larger ones count as not finite.
Number ParseNumber(absl::string_view text);

// A whole text as a non-negative integer. False when it is something else or too large.
bool ParseIndex(absl::string_view text, std::int64_t* value);

// The text in quotes, cut when long, for messages.
std::string Quoted(absl::string_view text);

// Steps through lines; '\n' or "\r\n" ends one, and the last needs no end.
class LineReader {
 public:
  explicit LineReader(absl::string_view text) : rest_(text) {}
  bool Next(absl::string_view* line);
  std::int64_t line_number() const { return line_number_; }  // of the last line given, from 1

 private:
  absl::string_view rest_;
  std::int64_t line_number_ = 0;
};

}  // namespace evenkeel::data
