#include <cstdio>
#include <memory>

#include "commands.h"
#include "evenkeel/config/cluster.h"
#include "evenkeel/core/status.h"
#include "evenkeel/transport/transports.h"
#include "progress.h"
#include "status_client.h"

namespace evenkeel::apps {
namespace {

struct Options {
  std::string chief;
  bool json = false;
  double timeout_seconds = 5;
};

int Status(const Options& options) {
  absl::StatusOr<std::string> answer;
  if (const auto address = ParseHostPort(options.chief); !address.ok()) {
    answer = address.status();
  } else {
    const std::unique_ptr<Transport> transport = MakeGrpcTransport({});
    StatusClient client(*transport, address->ToString());
    answer = client.Ask(FromSeconds(options.timeout_seconds));
  }
  if (!answer.ok()) {
    std::fprintf(stderr, "evenkeel status: %s\n", std::string(answer.status().message()).c_str());
    return static_cast<int>(ExitCodeFor(answer.status()));
  }
  if (options.json) {
    std::printf("%s\n", answer->c_str());
  } else {
    for (const std::string& line : StatusLines(*answer)) std::printf("%s\n", line.c_str());
  }
  return 0;
}

}  // namespace

void AddStatusCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("status", "Says how a running job stands");
  command->add_option("--chief", options->chief, "The chief's address")->required()->type_name("HOST:PORT");
  command->add_flag("--json", options->json, "As the chief tells it, a JSON object");
  command->add_option("--timeout-seconds", options->timeout_seconds, "Waits at most so long for the answer")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 600.0));
  command->callback([&chosen, options] { chosen = [options] { return Status(*options); }; });
}

}  // namespace evenkeel::apps
