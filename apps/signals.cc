#include "signals.h"

#include <pthread.h>

#include <utility>

namespace evenkeel::apps {
namespace {

constexpr int kEndThread = SIGUSR2;

}  // namespace

Signals::Signals(Handler handler) : handler_(std::move(handler)) {
  std::signal(SIGPIPE, SIG_IGN);
  sigemptyset(&set_);
  for (int signal : {SIGTERM, SIGINT, kEndThread}) sigaddset(&set_, signal);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  thread_ = std::thread([this] {
    for (int count = 0;;) {
      int signal = 0;
      if (sigwait(&set_, &signal) != 0) continue;
      if (signal == kEndThread) return;
      handler_(++count, signal == SIGTERM ? "SIGTERM" : "SIGINT");
    }
  });
}

Signals::~Signals() {
  pthread_kill(thread_.native_handle(), kEndThread);
  thread_.join();
}

}  // namespace evenkeel::apps
