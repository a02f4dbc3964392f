#include "evenkeel/core/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <catch2/catch.hpp>

namespace evenkeel {
namespace {

// Standard error goes to a file while this lives.
class CapturedStderr {
 public:
  CapturedStderr() {
    int file = mkstemp(path_);
    REQUIRE(file >= 0);
    saved_ = dup(STDERR_FILENO);
    dup2(file, STDERR_FILENO);
    close(file);
  }
  ~CapturedStderr() { Restore(); }
  std::string Finish() {
    Restore();
    std::ifstream in(path_);
    std::ostringstream text;
    text << in.rdbuf();
    unlink(path_);
    return text.str();
  }

 private:
  void Restore() {
    if (saved_ < 0) return;
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    saved_ = -1;
  }
  char path_[32] = "/tmp/evenkeel_log_XXXXXX";
  int saved_ = -1;
};

TEST_CASE("a line of log holds time, level, process and the message as it is", "[core][log]") {
  CapturedStderr capture;
  InitLog("worker:1 100%", LogLevel::kInfo);
  LogDebug("not shown");
  LogInfo("braces {} and %v stay");
  LogWarning("slow");
  LogError("lost");
  std::string text = capture.Finish();
  CHECK_THAT(text, Catch::Matches("[0-9-]{10} [0-9:]{8}\\.[0-9]{3} I worker:1 100% braces \\{\\} and %v stay\n"
                                  "[0-9: .-]+ W worker:1 100% slow\n"
                                  "[0-9: .-]+ E worker:1 100% lost\n"));
}

TEST_CASE("the level decides what is shown", "[core][log]") {
  CapturedStderr capture;
  InitLog("ps:0", LogLevel::kError);
  LogWarning("hidden");
  InitLog("ps:0", LogLevel::kDebug);
  LogDebug("shown");
  std::string text = capture.Finish();
  CHECK_THAT(text, !Catch::Contains("hidden"));
  CHECK_THAT(text, Catch::Contains("D ps:0 shown"));
}

}  // namespace
}  // namespace evenkeel
