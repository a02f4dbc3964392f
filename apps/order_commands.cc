// `evenkeel drain` and `evenkeel scale`: orders to a running job's chief.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "commands.h"
#include "evenkeel/config/cluster.h"
#include "evenkeel/core/status.h"
#include "evenkeel/protocol/question.h"
#include "evenkeel/transport/transports.h"
#include "options.h"

namespace evenkeel::apps {
namespace {

struct Options {
  std::string chief;
  double timeout_seconds = 5;
  std::string name;           // drain
  std::uint32_t servers = 0;  // scale
};

absl::StatusOr<std::string> Order(const Body& order, const Options& options) {
  EK_ASSIGN_OR_RETURN(const HostPort address, ParseChiefAddress(options.chief));
  const std::unique_ptr<Transport> transport = MakeGrpcTransport({});
  StopSource stop;
  EK_ASSIGN_OR_RETURN(const Body answer, Ask(order, address.ToString(), *transport, Clock::Real(), stop,
                                             FromSeconds(options.timeout_seconds)));
  const auto* reply = std::get_if<OrderReply>(&answer);
  if (reply == nullptr) {
    return absl::InternalError(absl::StrCat("the chief at ", address.ToString(), " answered ", NameOf(answer)));
  }
  if (reply->accepted) return reply->message;
  return reply->unknown ? absl::NotFoundError(reply->message) : absl::FailedPreconditionError(reply->message);
}

int OrderAndSay(const char* command, const Body& order, const Options& options) {
  const absl::StatusOr<std::string> done = Order(order, options);
  if (done.ok()) {
    std::printf("%s\n", done->c_str());
  } else {
    std::fprintf(stderr, "evenkeel %s: %s\n", command, std::string(done.status().message()).c_str());
  }
  return static_cast<int>(ExitCodeFor(done.status()));
}

void AddChiefOptions(CLI::App& command, Options& options) {
  command.add_option("--chief", options.chief, "The chief's address")->required()->type_name("HOST:PORT");
  command.add_option("--timeout-seconds", options.timeout_seconds, "Waits at most so long for the answer")
      ->capture_default_str()
      ->check(Within(0.1, 600.0));
}

}  // namespace

void AddDrainCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "drain", "Lets a member leave in good order: it finishes or gives back its update, and ends with 0");
  command->add_option("name", options->name, "The member, as `evenkeel status` names it: worker:1")->required();
  AddChiefOptions(*command, *options);
  command->callback(
      [&chosen, options] { chosen = [options] { return OrderAndSay("drain", Drain{options->name}, *options); }; });
}

void AddScaleCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "scale",
      "Changes the number of parameter servers while training goes on: launch starts those that it lacks, "
      "elsewhere they are started by hand (evenkeel-ps) and join; those that are too many end with 0");
  command->add_option("--ps", options->servers, "So many servers share the parameters")
      ->required()
      ->check(CLI::Range(1, 4096));
  AddChiefOptions(*command, *options);
  command->callback(
      [&chosen, options] { chosen = [options] { return OrderAndSay("scale", Scale{options->servers}, *options); }; });
}

}  // namespace evenkeel::apps
