#include "core/cores.h"

#include <sched.h>

#include <catch2/catch.hpp>

#include "core/cgroups.h"
#include "evenkeel/core/thread_pool.h"

namespace evenkeel {
namespace {

TEST_CASE("a quota gives its cores rounded up", "[core][cores]") {
  CHECK(internal::CoresOfQuota(200000, 100000) == 2);
  CHECK(internal::CoresOfQuota(150000, 100000) == 2);
  CHECK(internal::CoresOfQuota(5000, 10000) == 1);
  CHECK(internal::CoresOfQuota(-1, 100000) == 0);
  CHECK(internal::CoresOfQuota(100000, 0) == 0);
}

TEST_CASE("cpu.max is read with and without a limit", "[core][cores]") {
  CHECK(internal::CoresOfCpuMax("max 100000\n") == 0);
  CHECK(internal::CoresOfCpuMax("300000 100000\n") == 3);
  CHECK(internal::CoresOfCpuMax("") == 0);
  CHECK(internal::CoresOfCpuMax("nonsense") == 0);
}

TEST_CASE("a process's cgroup folder is found by controller", "[core][cores]") {
  constexpr char kGroups[] = "4:memory:/a\n3:cpu,cpuacct:/b/c\n2:cpuset:/d\n0::/e\n";
  CHECK(internal::CgroupFolder(kGroups, "cpu") == "/b/c");
  CHECK(internal::CgroupFolder(kGroups, "cpuset") == "/d");
  CHECK(internal::CgroupFolder(kGroups, "") == "/e");
  CHECK(internal::CgroupFolder(kGroups, "io") == "");
  CHECK(internal::CgroupFolder("", "") == "");
}

TEST_CASE("the available cores follow the affinity mask", "[core][cores]") {
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(AvailableCores() >= 1);
  CHECK(AvailableCores() <= CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(AvailableCores() == 1);
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
}

}  // namespace
}  // namespace evenkeel
