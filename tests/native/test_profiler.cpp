// The gate that lets some launches run alone, to be counted. tests/extras/hardware/test_profiling.py tests cutrace profile as a
// whole.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "profiler/launch_gate.h"

using namespace cutrace;

namespace {

using Gate = LaunchGate<int>;

// Later than the end of any test, so that a thread that waits for it makes the test hang.
Gate::Clock::time_point never() { return Gate::Clock::now() + std::chrono::hours(1); }

// Threads that launch all the time, each for a while, until the test is over.
class Launching {
 public:
  Launching(Gate& gate, int threads) {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([this, &gate] {
        while (!over_) {
          CHECK(!gate.enter(never()));
          CHECK(!alone_);
          std::this_thread::sleep_for(std::chrono::microseconds(500));
          CHECK(!alone_);
          gate.leave();
          ++launches_;
        }
      });
  }
  ~Launching() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  int launches() const { return launches_; }
  void set_alone(bool alone) { alone_ = alone; }

 private:
  std::atomic<bool> over_{false}, alone_{false};
  std::atomic<int> launches_{0};
  std::vector<std::thread> threads_;
};

}  // namespace

TEST(a_launch_gets_to_be_alone_while_others_launch_all_the_time) {
  Gate gate;
  Launching others(gate, 8);
  for (int i = 0; i < 20; ++i) {
    const int before = others.launches();
    while (others.launches() < before + 8) std::this_thread::yield();
    CHECK(gate.enter_alone(i, never()));
    others.set_alone(true);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    others.set_alone(false);
    CHECK(gate.undisturbed());
    gate.leave_alone();
  }
}

TEST_OF_THREADS(launches_that_waited_go_before_the_next_one_alone) {
  Gate gate;
  CHECK(gate.enter_alone(0, never()));
  std::atomic<bool> entered{false};
  std::thread other([&] {
    CHECK(!gate.enter(never()));
    entered = true;
    gate.leave();
  });
  for (int i = 1; !entered; ++i) {  // waits forever if the next launch is always first
    gate.leave_alone();
    CHECK(gate.enter_alone(i, never()));
  }
  gate.leave_alone();
  other.join();
}

TEST(a_launch_that_has_waited_enough_disturbs_the_one_alone) {
  Gate gate;
  CHECK(gate.enter_alone(7, never()));
  const auto first = gate.enter(Gate::Clock::now());
  CHECK(first && *first == 7);
  CHECK(!gate.undisturbed());
  CHECK(!gate.enter(Gate::Clock::now()));  // reported once
  gate.leave_alone();
  CHECK(!gate.enter_alone(8, Gate::Clock::now()));  // two are inside
  gate.leave();
  gate.leave();
  CHECK(gate.enter_alone(9, Gate::Clock::now()));
  CHECK(gate.undisturbed());
  CHECK(!gate.enter_alone(10, Gate::Clock::now()));
  gate.leave_alone();
}

TEST(a_launch_that_does_not_get_to_be_alone_leaves_the_gate_open) {
  Gate gate;
  CHECK(!gate.enter(never()));
  CHECK(!gate.enter_alone(1, Gate::Clock::now()));
  CHECK(!gate.enter(never()));
  gate.leave();
  gate.leave();
}

TEST_OF_THREADS(a_launch_that_does_not_end_is_overdue) {
  constexpr Gate::Duration kLong = std::chrono::hours(1), kNone{0};
  {
    Gate gate;
    CHECK(gate.enter_alone(1, never()));
    CHECK_EQUAL(gate.overdue(kLong, kNone), 1);
  }
  Gate gate;
  std::thread watch([&] { CHECK_EQUAL(gate.overdue(kNone, kLong), 3); });
  CHECK(gate.enter_alone(2, never()));  // ends in time
  gate.leave_alone();
  CHECK(gate.enter_alone(3, never()));
  CHECK(gate.enter(Gate::Clock::now()).has_value());
  watch.join();
}

int main(int argc, char** argv) { return check::main(argc, argv); }

TEST_OF_THREADS(launches_wait_beyond_their_deadline_for_one_that_is_replayed) {
  Gate gate;
  CHECK(gate.enter_alone(0, never()));
  CHECK(gate.start_replaying());
  std::atomic<bool> entered{false};
  std::thread other([&] {
    CHECK(!gate.enter(Gate::Clock::now()));
    entered = true;
    gate.leave();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!entered);
  CHECK(gate.undisturbed());
  gate.leave_alone();
  other.join();
}

TEST(a_launch_that_others_no_longer_wait_for_is_not_replayed) {
  Gate gate;
  CHECK(gate.enter_alone(0, never()));
  CHECK(gate.enter(Gate::Clock::now()) == 0);
  CHECK(!gate.start_replaying());
  gate.leave();
  gate.leave_alone();
}
