// The public sets that the experiments use and where they are to be had.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace evenkeel::data {

// The set that a path belongs to, by its folder or file name: "fashion-mnist"; the folder's name for an unknown one.
std::string SetNameOf(absl::string_view path);
// A clause for messages: "fashion-mnist is to be had as the Debian package dataset-fashion-mnist, ...".
std::string OriginOf(absl::string_view path);

}  // namespace evenkeel::data
