#include <cstdio>
#include <memory>
#include <variant>

#include "absl/strings/str_cat.h"
#include "commands.h"
#include "evenkeel/config/cluster.h"
#include "evenkeel/core/status.h"
#include "evenkeel/protocol/question.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel::apps {
namespace {

struct Options {
  std::string name, chief;
  double timeout_seconds = 5;
};

absl::StatusOr<std::string> Drain(const Options& options) {
  EK_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options.chief));
  const std::unique_ptr<Transport> transport = MakeGrpcTransport({});
  StopSource stop;
  EK_ASSIGN_OR_RETURN(const Body answer, Ask(evenkeel::Drain{options.name}, address.ToString(), *transport,
                                             Clock::Real(), stop, FromSeconds(options.timeout_seconds)));
  const auto* reply = std::get_if<OrderReply>(&answer);
  if (reply == nullptr) {
    return absl::InternalError(absl::StrCat("the chief at ", address.ToString(), " answered ", NameOf(answer)));
  }
  if (reply->accepted) return reply->message;
  return reply->unknown ? absl::NotFoundError(reply->message) : absl::FailedPreconditionError(reply->message);
}

int DrainAndSay(const Options& options) {
  const absl::StatusOr<std::string> done = Drain(options);
  if (done.ok()) {
    std::printf("%s\n", done->c_str());
  } else {
    std::fprintf(stderr, "evenkeel drain: %s\n", std::string(done.status().message()).c_str());
  }
  return static_cast<int>(ExitCodeFor(done.status()));
}

}  // namespace

void AddDrainCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "drain", "Lets a member leave in good order: it finishes or gives back its update, and ends with 0");
  command->add_option("name", options->name, "The member, as `evenkeel status` names it: worker:1")->required();
  command->add_option("--chief", options->chief, "The chief's address")->required()->type_name("HOST:PORT");
  command->add_option("--timeout-seconds", options->timeout_seconds, "Waits at most so long for the answer")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 600.0));
  command->callback([&chosen, options] { chosen = [options] { return DrainAndSay(*options); }; });
}

}  // namespace evenkeel::apps
