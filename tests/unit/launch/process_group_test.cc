#include "evenkeel/launch/process_group.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "catch2/catch.hpp"

namespace evenkeel {
namespace {

constexpr Duration kLong = std::chrono::seconds(30);

std::string Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "evenkeel_launch_XXXXXX").string();
  REQUIRE(mkdtemp(name.data()) != nullptr);
  return name;
}

ProcessGroup MakeGroup() {
  auto group = ProcessGroup::Create();
  REQUIRE(group.ok());
  return *std::move(group);
}

int StartShell(ProcessGroup& group, const std::string& script, const std::string& log = "",
               std::vector<std::pair<std::string, std::string>> environment = {}, int pass = -1) {
  auto started = group.Start({"shell", {"/bin/sh", "-c", script}, std::move(environment), log, pass});
  REQUIRE(started.ok());
  return *started;
}

ProcessExit ExitOf(ProcessGroup& group, int process) {
  const TimePoint deadline = Clock::Real().Now() + kLong;
  while (group.running(process) && Clock::Real().Now() < deadline) group.Wait(deadline);
  REQUIRE_FALSE(group.running(process));
  return *group.entries()[static_cast<std::size_t>(process)].exit;
}

// Waits for the child's word that it is set up, so that no test depends on a pause.
struct Pipe {
  Pipe() { REQUIRE(pipe2(ends, O_CLOEXEC) == 0); }
  ~Pipe() {
    for (int end : ends) {
      if (end >= 0) close(end);
    }
  }
  std::string ReadLine() {
    if (ends[1] >= 0) close(ends[1]);
    ends[1] = -1;
    std::string line;
    char c;
    while (read(ends[0], &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  int ends[2];
};

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("an exit code and a signal are told apart", "[launch][fast]") {
  ProcessGroup group = MakeGroup();
  const int seven = StartShell(group, "exit 7");
  const int killed = StartShell(group, "kill -9 $$");
  CHECK(ExitOf(group, seven) == ProcessExit{false, 7});
  CHECK(ExitOf(group, killed) == ProcessExit{true, SIGKILL});
  CHECK(ProcessExit{false, 7}.ToString() == "exit code 7");
  CHECK(ProcessExit{true, SIGKILL}.ToString() == "signal 9 (Killed)");
}

TEST_CASE("a program that is not there is an error with its path", "[launch][fast]") {
  ProcessGroup group = MakeGroup();
  const auto started = group.Start({"worker:1", {"/no/such/program"}, {}, "", -1});
  CHECK(absl::IsNotFound(started.status()));
  CHECK(std::string(started.status().message()).find("/no/such/program") != std::string::npos);
  CHECK(group.entries().empty());
}

TEST_CASE("output is appended to the log, and the environment is changed over the parent's", "[launch][fast]") {
  const std::string folder = Folder();
  const std::string log = folder + "/shell.log";
  std::ofstream(log) << "before\n";
  setenv("EVENKEEL_LAUNCH_TEST", "parent", 1);
  ProcessGroup group = MakeGroup();
  const int process = StartShell(group, "echo $EVENKEEL_LAUNCH_TEST; echo $HOME_TEST >&2", log,
                                 {{"EVENKEEL_LAUNCH_TEST", "child"}, {"HOME_TEST", "here"}});
  CHECK(ExitOf(group, process).ok());
  CHECK(Contents(log) == "before\nchild\nhere\n");
  unsetenv("EVENKEEL_LAUNCH_TEST");
  std::filesystem::remove_all(folder);
}

TEST_CASE("a process that ends on SIGTERM is not killed", "[launch][fast]") {
  Pipe pipe;
  ProcessGroup group = MakeGroup();
  const int process = StartShell(group, "echo up >&3; exec sleep 1000", "", {}, pipe.ends[1]);
  CHECK(pipe.ReadLine() == "up");
  CHECK(group.Stop(kLong).empty());
  CHECK(group.entries()[static_cast<std::size_t>(process)].exit == ProcessExit{true, SIGTERM});
}

TEST_CASE("a process that ignores SIGTERM is killed after the grace", "[launch][fast]") {
  Pipe pipe;
  ProcessGroup group = MakeGroup();
  const int process =
      StartShell(group, "trap '' TERM; echo up >&3; while :; do sleep 1000; done", "", {}, pipe.ends[1]);
  CHECK(pipe.ReadLine() == "up");
  CHECK(group.Stop(std::chrono::milliseconds(100)) == std::vector<int>{process});
  CHECK(group.entries()[static_cast<std::size_t>(process)].exit == ProcessExit{true, SIGKILL});
}

TEST_CASE("the group's end leaves no child", "[launch][fast]") {
  pid_t pid = 0;
  {
    ProcessGroup group = MakeGroup();
    StartShell(group, "exec sleep 1000");
    pid = group.entries()[0].pid;
    CHECK(kill(pid, 0) == 0);
  }
  CHECK(kill(pid, 0) == -1);
  CHECK(errno == ESRCH);
}

TEST_CASE("children die with the thread that started them", "[launch][fast]") {
  ProcessGroup group = MakeGroup();
  int process = -1;
  std::thread starter([&] { process = StartShell(group, "exec sleep 1000"); });
  starter.join();
  CHECK(ExitOf(group, process) == ProcessExit{true, SIGKILL});
}

TEST_CASE("a wait ends by a wake, by its deadline, and reports an end once", "[launch][fast]") {
  ProcessGroup group = MakeGroup();
  group.Wake();
  CHECK(group.Wait(kNever).empty());
  CHECK(group.Wait(Clock::Real().Now()).empty());
  const int process = StartShell(group, "exit 0");
  CHECK(group.Wait(kNever) == std::vector<int>{process});
  CHECK(group.Wait(Clock::Real().Now()).empty());
}

TEST_CASE("a child starts with no signal blocked", "[launch][fast]") {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  ProcessGroup group = MakeGroup();
  const int process = StartShell(group, "exec sleep 1000");
  group.Signal(process, SIGTERM);
  CHECK(ExitOf(group, process) == ProcessExit{true, SIGTERM});
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_CASE("a process that has ended is started again in its place", "[launch][fast]") {
  ProcessGroup group = MakeGroup();
  const int process = StartShell(group, "exit 3");
  const int other = StartShell(group, "exec sleep 1000");
  CHECK(ExitOf(group, process) == ProcessExit{false, 3});
  REQUIRE(group.StartAgain(process, {"shell", {"/bin/sh", "-c", "exit 4"}, {}, "", -1}).ok());
  CHECK(ExitOf(group, process) == ProcessExit{false, 4});
  CHECK(absl::IsNotFound(group.StartAgain(process, {"shell", {"/no/such/program"}, {}, "", -1})));
  CHECK(group.entries().size() == 2);
  CHECK(group.running(other));
}

TEST_CASE("what a process leaves behind ends with it", "[launch][fast]") {
  Pipe pipe;
  ProcessGroup group = MakeGroup();
  const int process = StartShell(group, "sleep 1000 3>&3 & echo up >&3", "", {}, pipe.ends[1]);
  CHECK(ExitOf(group, process).ok());
  CHECK(pipe.ReadLine() == "up");
  CHECK(pipe.ReadLine().empty());  // nobody holds the other end any more
}

TEST_CASE("the last lines of a log are whole lines", "[launch][fast]") {
  const std::string folder = Folder();
  const std::string path = folder + "/a.log";
  CHECK(LastLines(path, 3).empty());
  std::ofstream(path) << "one\ntwo\nthree\n";
  CHECK(LastLines(path, 2) == "two\nthree");
  CHECK(LastLines(path, 9) == "one\ntwo\nthree");
  CHECK(LastLines(path, 9, 4) == "two\nthree");
  CHECK(LastLines(path, 9, 14).empty());
  CHECK(LastLines(path, 9, 99).empty());
  const std::string error = "2026-01-02 03:04:05.678 E chief:0 model_dir is in use";
  std::ofstream(path) << "one\n" << error << "\ntwo\nthree\n";
  CHECK(LastLines(path, 2) == error + "\ntwo\nthree");
  CHECK(LastLines(path, 3) == error + "\ntwo\nthree");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace evenkeel
