// absl::StrCat that also takes std::string_view, which Debian's Abseil, built for C++14, does not know.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace evenkeel::config_internal {

template <typename T>
const T& Piece(const T& value) {
  return value;
}
inline absl::string_view Piece(const std::string_view& text) { return {text.data(), text.size()}; }

template <typename... Pieces>
std::string Concat(const Pieces&... pieces) {
  return absl::StrCat(Piece(pieces)...);
}

}  // namespace evenkeel::config_internal
