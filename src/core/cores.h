// The parsing behind AvailableCores().
#pragma once

#include "absl/strings/string_view.h"

namespace evenkeel::internal {

// Cores of a quota: quota / period rounded up, at least 1. 0 when there is no limit or no sense in the text.
int CoresOfQuota(long long quota_us, long long period_us);
// cgroup v2's cpu.max: "max 100000" or "150000 100000".
int CoresOfCpuMax(absl::string_view text);

}  // namespace evenkeel::internal
