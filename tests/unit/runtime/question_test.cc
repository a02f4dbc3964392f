#include "evenkeel/protocol/question.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_split.h"
#include "unit/runtime/scripted_job.h"

namespace evenkeel {
namespace {

TEST_CASE("who asks until nobody has answered says why, and names the chief once", "[protocol]") {
  const auto transport = MakeInprocTransport();
  StopSource stop;
  std::string said;
  SECTION("nobody is there") {
    const auto answer = AskUntilAnswered(StatusRequest{}, "chief", *transport, Clock::Real(), stop, Milliseconds(300));
    CHECK(absl::IsDeadlineExceeded(answer.status()));
    said = std::string(answer.status().message());
    CHECK_THAT(said, Catch::StartsWith("waited 0.3 s for the chief at chief to answer: [connect]"));
  }
  SECTION("somebody who says nothing") {
    ScriptedChief chief(*transport);
    chief.Listen();
    const auto answer = AskUntilAnswered(StatusRequest{}, "chief", *transport, Clock::Real(), stop, Milliseconds(300));
    CHECK(absl::IsDeadlineExceeded(answer.status()));
    said = std::string(answer.status().message());
    CHECK(said == "waited 0.3 s for the chief at chief to answer: nobody answered within 0.3 s");
  }
  CHECK(std::vector<std::string>(absl::StrSplit(said, "the chief at")).size() == 2);
}

}  // namespace
}  // namespace evenkeel
