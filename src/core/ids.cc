#include "evenkeel/core/ids.h"

#include "absl/strings/str_cat.h"

namespace evenkeel {

std::string ToString(const Version& version) {
  return absl::StrCat("g", version.generation.value(), ".c", version.commit.value());
}

std::string ToString(const UpdateId& update_id) {
  return absl::StrCat("t", update_id.term.value(), ".i", update_id.incarnation.value(), ".s", update_id.sequence);
}

}  // namespace evenkeel
