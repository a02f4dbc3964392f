#include "evenkeel/core/available_memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/available_memory.h"
#include "core/cgroups.h"

namespace evenkeel {
namespace internal {

std::optional<std::int64_t> FieldOf(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    std::int64_t number = 0;
    if (fields.size() >= 2 && fields[0] == name && absl::SimpleAtoi(fields[1], &number)) return number;
  }
  return std::nullopt;
}

std::optional<std::int64_t> LeftInCgroup(absl::string_view limit, absl::string_view usage, absl::string_view stat,
                                         absl::string_view cache) {
  std::int64_t most = 0, used = 0;
  if (!absl::SimpleAtoi(limit, &most) || !absl::SimpleAtoi(usage, &used)) return std::nullopt;
  return std::max<std::int64_t>(most - used + FieldOf(stat, cache).value_or(0), 0);
}

}  // namespace internal

std::int64_t AvailableMemory() {
  using internal::ReadText;
  std::optional<std::int64_t> available = internal::FieldOf(ReadText("/proc/meminfo"), "MemAvailable:");
  if (available) *available *= 1024;
  const auto limit = [&available](std::optional<std::int64_t> left) {
    if (left) available = std::min(available.value_or(*left), *left);
  };
  internal::VisitCgroups("", [&](const std::string& folder) {
    for (const char* bound : {"/memory.max", "/memory.high"}) {
      limit(internal::LeftInCgroup(ReadText(folder + bound), ReadText(folder + "/memory.current"),
                                   ReadText(folder + "/memory.stat"), "inactive_file"));
    }
  });
  internal::VisitCgroups("memory", [&](const std::string& folder) {
    limit(internal::LeftInCgroup(ReadText(folder + "/memory.limit_in_bytes"),
                                 ReadText(folder + "/memory.usage_in_bytes"), ReadText(folder + "/memory.stat"),
                                 "total_inactive_file"));
  });
  return available.value_or(0);
}

}  // namespace evenkeel
