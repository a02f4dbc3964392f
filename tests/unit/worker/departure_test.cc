#include "worker/departure.h"

#include <catch2/catch.hpp>
#include <vector>

#include "evenkeel/core/mutex.h"

namespace evenkeel {
namespace {

// What a departure did, in order: 'a' announced, 'g' gave back.
class Calls {
 public:
  void Add(char what) {
    MutexLock lock(mutex_);
    calls_.push_back(what);
    changed_.NotifyAll();
  }
  std::vector<char> Await(std::size_t count) {
    MutexLock lock(mutex_);
    while (calls_.size() < count) changed_.Wait(mutex_);
    return calls_;
  }
  std::vector<char> now() {
    MutexLock lock(mutex_);
    return calls_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<char> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

TEST_CASE("a departure announces when it begins and after each reconnect, and gives back once the time is over",
          "[worker][fast]") {
  Calls calls;
  {
    Departure departure(
        Clock::Real(), [&] { calls.Add('a'); }, [&] { calls.Add('g'); });
    departure.AnnounceAgain();  // nothing has begun
    departure.Begin(Clock::Real().Now() + std::chrono::hours(1));
    CHECK(calls.Await(1) == std::vector<char>{'a'});
    departure.AnnounceAgain();
    CHECK(calls.Await(2) == std::vector<char>{'a', 'a'});
    departure.Begin(Clock::Real().Now());  // the first call's time stays
  }
  CHECK(calls.now() == std::vector<char>{'a', 'a'});
}

TEST_CASE("a departure without time gives back at once and says nothing more", "[worker][fast]") {
  Calls calls;
  Departure departure(
      Clock::Real(), [&] { calls.Add('a'); }, [&] { calls.Add('g'); });
  departure.Begin(Clock::Real().Now());
  CHECK(calls.Await(1) == std::vector<char>{'g'});
  departure.AnnounceAgain();
  departure.Begin(Clock::Real().Now());
  CHECK(calls.now() == std::vector<char>{'g'});
}

TEST_CASE("a departure that has not begun does nothing", "[worker][fast]") {
  Calls calls;
  {
    Departure departure(
        Clock::Real(), [&] { calls.Add('a'); }, [&] { calls.Add('g'); });
  }
  CHECK(calls.now().empty());
}

}  // namespace evenkeel
