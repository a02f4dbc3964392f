#include "core/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/cgroups.h"
#include "evenkeel/core/thread_pool.h"

namespace evenkeel {
namespace internal {

int CoresOfQuota(long long quota_us, long long period_us) {
  if (quota_us <= 0 || period_us <= 0) return 0;
  return static_cast<int>(std::clamp<long long>((quota_us + period_us - 1) / period_us, 1, 1 << 16));
}

int CoresOfCpuMax(absl::string_view text) {
  std::vector<absl::string_view> fields = absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  long long quota = 0;
  long long period = 0;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[0], &quota) || !absl::SimpleAtoi(fields[1], &period)) return 0;
  return CoresOfQuota(quota, period);
}

}  // namespace internal

namespace {

long long ReadNumber(const std::string& path) {
  long long value = 0;
  return absl::SimpleAtoi(internal::ReadText(path), &value) ? value : 0;  // SimpleAtoi skips blanks
}

int AffinityCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return static_cast<int>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
}

}  // namespace

int AvailableCores() {
  int cores = AffinityCores();
  const auto limit = [&cores](int quota) {
    if (quota > 0) cores = std::min(cores, quota);
  };
  internal::VisitCgroups("cpu", [&](const std::string& folder) {
    limit(internal::CoresOfQuota(ReadNumber(folder + "/cpu.cfs_quota_us"), ReadNumber(folder + "/cpu.cfs_period_us")));
  });
  internal::VisitCgroups(
      "", [&](const std::string& folder) { limit(internal::CoresOfCpuMax(internal::ReadText(folder + "/cpu.max"))); });
  return std::max(cores, 1);
}

}  // namespace evenkeel
