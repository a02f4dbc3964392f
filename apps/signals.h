// SIGTERM and SIGINT on a thread of their own.
//
// Threading: construct it in main() before any other thread starts; all later threads inherit the blocked mask.
#pragma once

#include <csignal>
#include <functional>
#include <thread>

namespace evenkeel::apps {

class Signals {
 public:
  // Called on the signal thread: count is 1 for the first signal, the name "SIGTERM" or "SIGINT".
  using Handler = std::function<void(int count, const char* name)>;
  explicit Signals(Handler handler);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  sigset_t set_;
  Handler handler_;
  std::thread thread_;
};

}  // namespace evenkeel::apps
