#include "evenkeel/core/status.h"

#include <memory>
#include <string>

#include <catch2/catch.hpp>

namespace evenkeel {
namespace {

absl::StatusOr<std::unique_ptr<int>> Make(bool works) {
  if (!works) return absl::NotFoundError("none");
  return std::make_unique<int>(3);
}

absl::StatusOr<int> Use(bool first, bool second) {
  EK_ASSIGN_OR_RETURN(std::unique_ptr<int> a, Make(first));
  EK_ASSIGN_OR_RETURN(std::unique_ptr<int> b, Make(second));
  EK_RETURN_IF_ERROR(absl::OkStatus());
  return *a + *b;
}

TEST_CASE("failures propagate, values come through", "[core][status]") {
  CHECK(*Use(true, true) == 6);
  CHECK(absl::IsNotFound(Use(false, true).status()));
  CHECK(absl::IsNotFound(Use(true, false).status()));
}

TEST_CASE("an annotation keeps the code and the payload", "[core][status]") {
  CHECK(Annotate(absl::OkStatus(), "load").ok());
  absl::Status status = absl::DataLossError("cut short");
  status.SetPayload("url", absl::Cord("x"));
  status = Annotate(status, "load");
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  CHECK(status.message() == "[load] cut short");
  CHECK(status.GetPayload("url").has_value());
}

TEST_CASE("each status has its exit code", "[core][status]") {
  CHECK(ExitCodeFor(absl::OkStatus()) == ExitCode::kOk);
  CHECK(ExitCodeFor(absl::InvalidArgumentError("")) == ExitCode::kWrongInput);
  CHECK(ExitCodeFor(absl::NotFoundError("")) == ExitCode::kWrongInput);
  CHECK(ExitCodeFor(absl::PermissionDeniedError("")) == ExitCode::kRefused);
  CHECK(ExitCodeFor(absl::FailedPreconditionError("")) == ExitCode::kRefused);
  CHECK(ExitCodeFor(absl::DeadlineExceededError("")) == ExitCode::kDeadline);
  CHECK(ExitCodeFor(absl::UnavailableError("")) == ExitCode::kDeadline);
  CHECK(ExitCodeFor(absl::InternalError("")) == ExitCode::kFailed);
}

}  // namespace
}  // namespace evenkeel
