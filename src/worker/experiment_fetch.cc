#include "evenkeel/worker/experiment_fetch.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "evenkeel/protocol/question.h"

namespace evenkeel {

absl::StatusOr<Experiment> FetchExperiment(const std::string& chief_address, const std::string& name,
                                           Transport& transport, const Clock& clock, StopSource& stop,
                                           Duration timeout) {
  EK_ASSIGN_OR_RETURN(const Body answer,
                      AskUntilAnswered(ExperimentRequest{name}, chief_address, transport, clock, stop, timeout));
  const auto* reply = std::get_if<ExperimentReply>(&answer);
  if (reply == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the chief at ", chief_address, " answered ", NameOf(answer), " when asked for its experiment"));
  }
  const std::string origin = absl::StrCat("of the chief at ", chief_address);
  absl::StatusOr<Experiment> experiment = ParseExperiment(reply->experiment_json, origin, {});
  if (!experiment.ok() || experiment->spec_hash != reply->spec_hash) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the experiment ", origin, " is not understood here as it is there; are both programs of one version? ",
        experiment.ok() ? absl::StrCat("its hash is ", reply->spec_hash, ", here ", experiment->spec_hash)
                        : std::string(experiment.status().message())));
  }
  LogInfo(
      absl::StrCat("experiment ", experiment->name, " of job ", reply->job_id, ", from the chief at ", chief_address));
  return experiment;
}

}  // namespace evenkeel
