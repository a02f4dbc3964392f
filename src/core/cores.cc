#include "core/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
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

absl::string_view CgroupFolder(absl::string_view proc_self_cgroup, absl::string_view controller) {
  // Lines are "id:controller,controller:/folder"; version 2 has the one line "0::/folder".
  for (absl::string_view line : absl::StrSplit(proc_self_cgroup, '\n')) {
    std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (controller.empty()) {
      if (fields[1].empty()) return fields[2];
      continue;
    }
    for (absl::string_view name : absl::StrSplit(fields[1], ',')) {
      if (name == controller) return fields[2];
    }
  }
  return {};
}

}  // namespace internal

namespace {

std::string ReadText(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return in ? text.str() : "";
}

long long ReadNumber(const std::string& path) {
  long long value = 0;
  return absl::SimpleAtoi(ReadText(path), &value) ? value : 0;  // SimpleAtoi skips blanks
}

// The tightest quota on the way from the process's folder up to the root. Inside a container the folder may not be
// visible, and the root then holds the limit.
template <class CoresIn>
int TightestQuota(const std::string& root, std::string folder, CoresIn cores_in) {
  int tightest = 0;
  for (;;) {
    int cores = cores_in(root + folder);
    if (cores > 0) tightest = tightest == 0 ? cores : std::min(tightest, cores);
    if (folder.empty()) return tightest;
    folder.resize(std::min(folder.rfind('/'), folder.size() - 1));
  }
}

int QuotaV1(const std::string& folder) {
  return internal::CoresOfQuota(ReadNumber(folder + "/cpu.cfs_quota_us"), ReadNumber(folder + "/cpu.cfs_period_us"));
}

int QuotaV2(const std::string& folder) { return internal::CoresOfCpuMax(ReadText(folder + "/cpu.max")); }

int AffinityCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return static_cast<int>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
}

}  // namespace

int AvailableCores() {
  const std::string groups = ReadText("/proc/self/cgroup");
  int cores = AffinityCores();
  auto limit = [&](int quota) {
    if (quota > 0) cores = std::min(cores, quota);
  };
  std::string v1_folder(internal::CgroupFolder(groups, "cpu"));
  for (const char* root : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
    limit(TightestQuota(root, v1_folder, QuotaV1));
  }
  std::string v2_folder(internal::CgroupFolder(groups, ""));
  for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    limit(TightestQuota(root, v2_folder, QuotaV2));
  }
  return std::max(cores, 1);
}

}  // namespace evenkeel
