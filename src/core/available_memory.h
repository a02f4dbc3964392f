// The parsing behind AvailableMemory().
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace evenkeel::internal {

// The number behind `name` in lines of "name number": /proc/meminfo ("MemAvailable:", kB), memory.stat (bytes).
std::optional<std::int64_t> FieldOf(absl::string_view text, absl::string_view name);

// The bytes that a control group leaves, by the texts of its limit, its usage and its memory.stat, whose `cache` field
// the kernel would give up. Nothing where there is no limit ("max") or no sense in the texts.
std::optional<std::int64_t> LeftInCgroup(absl::string_view limit, absl::string_view usage, absl::string_view stat,
                                         absl::string_view cache);

}  // namespace evenkeel::internal
