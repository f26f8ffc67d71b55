// Random use of the collector: recordings with any options, with threads that launch, load and unload modules, replay graphs,
// mark, leave ranges open, cut, dump, flush, fork and stop, and with failures of disk, memory or driver. Each event of a
// recording is in its files once or counted as lost, or the recording has failed with a note. No call takes much longer than the
// recording's patience.
//
// `test_random --seconds 10 --seed 1`, or `--rounds 5` for an amount of work that depends on no clock. The seed determines the actions of each thread, not their timing. `--faults` names the
// possible faults (see kFaults); `--faults none` disables them. Even seeds load the driver. Every third seed replays no graphs, so
// that CUPTI can be finalised.
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <fstream>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "capture_reader.h"
#include "collector_under_test.h"
#include "fake_cupti.h"
#include "fake_driver.h"
#include "fake_system.h"

// As in test_findings.cpp.
extern "C" int __lsan_is_turned_off() { return 1; }
extern "C" const char* __tsan_default_options() { return "die_after_fork=0:atexit_sleep_ms=0"; }

using namespace cutrace;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
constexpr unsigned kMostPatience = 500;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr int kSlack = kSanitized ? 8000 : 4000;
constexpr int kLongestCall = 3 * kMostPatience + kSlack;  // milliseconds

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t operator()() { return engine_(); }
  std::uint64_t below(std::uint64_t n) { return engine_() % n; }
  std::uint64_t between(std::uint64_t a, std::uint64_t b) { return a + below(b - a + 1); }
  unsigned few(unsigned a, unsigned b) { return static_cast<unsigned>(between(a, b)); }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <typename T>
  T of(std::initializer_list<T> choices) {
    return choices.begin()[below(choices.size())];
  }

 private:
  std::mt19937_64 engine_;
};

std::string name(char prefix, std::uint64_t serial) { return std::string(1, prefix).append(std::to_string(serial)); }

void sleep_us(std::uint64_t time) { std::this_thread::sleep_for(std::chrono::microseconds(time)); }

// ---- the log of actions ----

class Counts {
 public:
  void add(const std::string& what, std::uint64_t count = 1) {
    const std::lock_guard lock(mutex_);
    counts_[what] += count;
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    std::string out;
    for (const auto& [what, count] : counts_) out += "  " + what + " " + std::to_string(count) + "\n";
    return out;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::uint64_t> counts_;
};

Counts& counts() {
  static auto* c = new Counts;
  return *c;
}

// Running calls: a call that takes too long ends the test, even if it never returns.
class Watch {
 public:
  explicit Watch(const char* name) {
    counts().add(name);
    const std::lock_guard lock(mutex());
    at_ = calls().insert(calls().end(), {name, Clock::now()});
  }
  ~Watch() {
    const std::lock_guard lock(mutex());
    calls().erase(at_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  static void watch() {
    std::thread([] {
      for (;;) {
        sleep_us(100'000);
        const std::lock_guard lock(mutex());
        for (const auto& [name, began] : calls())
          if (Clock::now() - began > std::chrono::milliseconds(kLongestCall))
            check::failed(__FILE__, __LINE__, std::string("a call does not return: ") + name);
      }
    }).detach();
  }

 private:
  struct Call {
    const char* name;
    Clock::time_point began;
  };
  static std::mutex& mutex() {
    static auto* m = new std::mutex;
    return *m;
  }
  static std::list<Call>& calls() {
    static auto* c = new std::list<Call>;
    return *c;
  }
  std::list<Call>::iterator at_;
};

// ---- the events of the program, and the recordings ----

enum class Kind { kernel, mark, range };

// A kernel, a mark or a range, and the start and the end of its calls. Its row has its serial number.
struct Item {
  Kind kind;
  std::uint64_t serial = 0;
  std::uint64_t began = 0, opened = 0;     // opened: the return of the call that opens a range
  std::uint64_t closing = 0, ended = kNever;  // closing: the start of the call that closes it
};

struct Recording {
  Folder folder;
  std::string options;
  bool nvtx = true, kernels = true, newest = false, armed = false;
  std::uint64_t start_called = 0, started = kNever;
  std::atomic<std::uint64_t> attached{kNever};  // later launches are recorded
  std::atomic<std::uint64_t> stop_called{kNever}, stop_returned{kNever};
  std::atomic<int> stopped{-1};  // the result of stop()
  std::atomic<int> cuts{0};
  std::string stop_error, notes;
  std::string faults;
};

struct Program {
  explicit Program(std::uint64_t s) : seed(s) {}

  Collector collector;
  const std::uint64_t seed;
  std::string faults;  // the allowed faults, separated by commas; empty: all
  std::atomic<std::uint32_t> serial{1};
  nvtxDomainHandle_t domain = nullptr;
  bool driver = false;
  int (*launch_long)(const char*, const char*, const std::uint32_t*, const std::uint32_t*, std::uint32_t, std::uint64_t,
                     std::uint64_t, std::uint32_t) = nullptr;

  // No recording starts or ends while `gate` is shared.
  std::shared_mutex gate;
  std::atomic<bool> gate_wanted{false};
  std::shared_ptr<Recording> current;  // under gate
  std::atomic<Recording*> attached{nullptr};  // the recording that records GPU work, until it is stopped
  std::atomic<bool> initialised{false};       // inside the first injection of CUDA, before any module is loaded
  bool graphs = true;                         // whether threads replay graphs
  std::atomic<bool> graph_ran{false};         // set while GPU work is recorded
  std::mutex signal;                   // no thread stops a recording while it is held

  std::mutex mutex;
  std::vector<Item> items;  // under mutex
  std::string story;        // under mutex: of this round
  std::atomic<bool> over{false};

  std::uint64_t now() { return collector.now(); }
  void tell(const std::string& what) {
    const std::lock_guard lock(mutex);
    story += what + "\n";
  }
};
Program* program = nullptr;

std::string about() {
  if (program == nullptr) return "";
  std::string text = "seed " + std::to_string(program->seed) + "\n";
  if (program->mutex.try_lock()) {
    text += program->story;
    program->mutex.unlock();
  }
  return text;
}

#define TIMED(name, call)  \
  [&] {                    \
    const Watch watch(name); \
    return call;           \
  }()

// ---- threads of the program ----

class Producer {
 public:
  explicit Producer(std::uint64_t seed) : random_(seed) {}

  void run() {
    while (!program->over && !random_.one_in(60)) {
      const std::uint64_t burst = random_.one_in(60) ? 3000 : random_.between(1, 60);
      for (std::uint64_t i = 0; i < burst; ++i) step();
      sleep_us(random_.below(4000));
    }
    while (!pushed_.empty() && !random_.one_in(20)) pop();
    for (auto& [item, id] : started_) end(item, id);
    for (Item& item : pushed_) items_.push_back(item);
    fake_hold_buffer(false);
    const std::lock_guard lock(program->mutex);
    program->items.insert(program->items.end(), items_.begin(), items_.end());
  }

 private:
  void step() {
    if (random_.one_in(60)) return graph();
    if (random_.one_in(40) && program->initialised) return module();
    if (random_.one_in(300)) return fake_hold_buffer(random_.one_in(2));
    if (random_.one_in(300)) return open_many();
    switch (random_.below(12)) {
      case 0: case 1: case 2: case 3: return launch();
      case 4: case 5: case 6: return mark();
      case 7: return registered_mark();
      case 8: case 9: return pushed_.size() < 4 ? push() : pop();
      case 10: return pushed_.empty() ? push() : pop();
      default: return started_.size() < 4 ? start() : end_oldest();
    }
  }

  Item begin(Kind kind) {
    Item item{kind};
    item.serial = program->serial.fetch_add(1);
    item.began = program->now();
    return item;
  }
  void finish(Item item) {
    item.ended = program->now();
    items_.push_back(item);
  }

  void launch() {
    const Item item = begin(Kind::kernel);
    fake_enter_call(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeLaunchKernel);
    const auto serial = static_cast<std::uint32_t>(item.serial);
    fake_launch("k", 1 + serial % 3, serial, false);
    finish(item);
  }
  // A module with one function, which gets the handle of an unloaded function. CUPTI's record of its kernel then has the name of
  // another kernel.
  void module() {
    const Item item = begin(Kind::kernel);
    const std::uintptr_t function = fake_load_function(name('u', item.serial).c_str());
    fake_launch_function(function);
    finish(item);
    fake_unload_function(function);
  }
  // They stay open for a while, or until the thread ends.
  void open_many() {
    for (auto count = random_.between(20, 300); count > 0; --count) push();
  }
  void replay(std::uint32_t exec, std::uint32_t stream) {
    const Recording* const before = program->attached;
    fake_graph_replay(exec, stream);
    if (before != nullptr && program->attached == before) program->graph_ran = true;
  }
  // A captured and replayed graph. The stream of its kernels is the serial of the range in which they were created.
  void graph() {
    push();
    const auto serial = static_cast<std::uint32_t>(pushed_.back().serial);
    const std::uint32_t graph = fake_graph();
    for (auto nodes = random_.between(1, 9); nodes > 0; --nodes) fake_graph_add(graph, "g");
    if (random_.one_in(3)) {
      const std::uint32_t parent = fake_graph();
      fake_graph_add_child(parent, graph);
      if (program->graphs) replay(fake_graph_instantiate(parent), serial);
    }
    pop();
    push();
    if (program->graphs) replay(fake_graph_instantiate(graph), serial);
    pop();
  }
  void mark() {
    const Item item = begin(Kind::mark);
    nvtxMarkA(name('m', item.serial).c_str());
    finish(item);
  }
  void registered_mark() {
    if (registered_ == nullptr) {
      static std::atomic<int> number{0};
      text_ = "registered " + std::to_string(number++);
      registered_ = nvtxDomainRegisterStringA(program->domain, text_.c_str());
    }
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = registered_;
    attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    const Item item = begin(Kind::mark);
    attributes.payload.ullValue = item.serial;
    nvtxDomainMarkEx(program->domain, &attributes);
    finish(item);
  }
  void push() {
    Item item = begin(Kind::range);
    nvtxRangePushA(name('p', item.serial).c_str());
    item.opened = program->now();
    pushed_.push_back(item);
  }
  void pop() {
    Item item = pushed_.back();
    pushed_.pop_back();
    item.closing = program->now();
    nvtxRangePop();
    finish(item);
  }
  void start() {
    Item item = begin(Kind::range);
    const nvtxRangeId_t id = nvtxRangeStartA(name('s', item.serial).c_str());
    item.opened = program->now();
    started_.emplace_back(item, id);
  }
  void end(Item item, nvtxRangeId_t id) {
    item.closing = program->now();
    nvtxRangeEnd(id);
    finish(item);
  }
  void end_oldest() {
    const auto [item, id] = started_.front();
    started_.pop_front();
    end(item, id);
  }

  Random random_;
  std::vector<Item> items_, pushed_;
  std::deque<std::pair<Item, nvtxRangeId_t>> started_;
  nvtxStringHandle_t registered_ = nullptr;
  std::string text_;
};

// Starts and joins threads one after the other.
void produce(std::uint64_t seed) {
  Random random(seed);
  while (!program->over) std::thread([&] { Producer(random()).run(); }).join();
}

void stop_recording(const std::shared_ptr<Recording>& recording) {
  program->attached = nullptr;
  {
    const std::lock_guard lock(program->signal);
    const std::uint64_t now = program->now();
    std::uint64_t before = recording->stop_called.load();
    while (now < before && !recording->stop_called.compare_exchange_weak(before, now)) {}
  }
  const int status = TIMED("stop", program->collector.stop());
  const std::string error = status != 0 ? program->collector.last_error() : "";
  if (error.find("no recording") != std::string::npos) return;  // another thread has stopped it or is stopping it
  CHECK(status == 0 || !error.empty());
  std::string before;
  {
    const std::lock_guard lock(program->mutex);
    if (recording->stopped != -1) before = "stopped before: " + recording->stop_error;
    recording->stop_error = error;
    recording->notes = program->collector.notes();
    recording->stop_returned = program->now();
    recording->stopped = status;
  }
  CHECK_EQUAL(before, std::string());
}

void run_child(Random random) {
  alarm(30);
  Collector& collector = program->collector;
  const auto how = random.below(4);
  // Sanitizers do not support threads and memory in a forked child of a process with threads. glibc supports them only in part.
  if (kSanitized || how == 0) _exit(0);
  for (int i = 0; i < 20; ++i) {
    nvtxMarkA(name('c', static_cast<std::uint64_t>(i)).c_str());
    nvtxRangePushA("child");
    nvtxRangePop();
  }
  nvtxDomainRegisterStringA(program->domain, "a text of the child");
  if (how == 1) {
    collector.running();
    struct cutrace_stats stats {};
    collector.stats(&stats, sizeof stats);
    collector.flush();
    collector.notes();
    collector.stop();
  }
  if (how == 2) std::exit(0);
  _exit(0);
}

void fork_child(Random& random) {
  const Random of_child(random());
  auto watch = std::make_optional<Watch>("fork");
  const pid_t child = fork();
  if (child == 0) run_child(of_child);  // takes no lock of this program, because the owners of locks do not exist in the child
  watch.reset();
  CHECK(child > 0);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) CHECK_EQUAL(errno, EINTR);
  if (WIFSIGNALED(status))
    check::failed(__FILE__, __LINE__, "a child was ended by signal " + std::to_string(WTERMSIG(status)));
  CHECK_EQUAL(WEXITSTATUS(status), 0);
}

// Calls that are allowed at any time, and calls about the files of the current recording.
void call_something(Random& random) {
  Program& p = *program;
  Collector& collector = p.collector;
  switch (random.below(20)) {
    case 0: case 1: {
      if (TIMED("flush", collector.flush()) != 0) CHECK(*collector.last_error() != '\0');
      return;
    }
    case 2: TIMED("synchronize", collector.synchronize()); return;
    case 3: case 4: case 5: {
      Item item{Kind::mark};
      item.serial = p.serial.fetch_add(1);
      item.began = p.now();
      const int status = TIMED("mark", collector.mark(name('m', item.serial).c_str()));
      if (status == 0) item.ended = p.now();
      const std::lock_guard lock(p.mutex);
      p.items.push_back(item);
      return;
    }
    case 6: case 7: TIMED("stats", collector.statistics()); return;
    case 8: TIMED("notes", collector.notes()); return;
    case 9: TIMED("last_error", collector.last_error()); return;
    case 10: TIMED("running", collector.running()); return;
    case 11: return fork_child(random);
    default: break;
  }
  if (p.gate_wanted) return;
  const std::shared_lock gate(p.gate);
  const std::shared_ptr<Recording> recording = p.current;
  if (recording == nullptr) return;
  switch (random.below(20)) {
    case 0: case 1: case 2: case 3: case 4: case 5: case 6: case 7: {
      const std::string path = recording->folder.path + "/cut" + std::to_string(recording->cuts++);
      const int status = TIMED("cut", collector.cut(path.c_str()));
      if (status < 0) CHECK(*collector.last_error() != '\0');
      counts().add(status == 0 ? "cut: done" : status > 0 ? "cut: nothing" : "cut: failed");
      if (status == 0) CHECK(std::filesystem::exists(path));
      return;
    }
    case 8: case 9: case 10: case 11: case 12: {
      const std::string path = recording->folder.path + "/dumps/" + std::to_string(recording->cuts++);
      const int status = TIMED("dump", collector.dump(path.c_str()));
      if (status < 0) CHECK(*collector.last_error() != '\0');
      counts().add(status == 0 ? "dump: done" : status > 0 ? "dump: nothing" : "dump: failed");
      if (status == 0) CHECK(std::filesystem::exists(path));
      return;
    }
    case 13: case 14: case 15: case 16: {
      const std::lock_guard lock(p.signal);
      if (!recording->armed || recording->stop_called != kNever) return;
      struct sigaction action {};
      CHECK(sigaction(SIGUSR2, nullptr, &action) == 0 && action.sa_handler != SIG_DFL);
      TIMED("signal", raise(SIGUSR2));
      return;
    }
    case 17: return stop_recording(recording);
    default: return;
  }
}

void call(std::uint64_t seed) {
  Random random(seed);
  while (!program->over) {
    call_something(random);
    sleep_us(random.below(10'000));
  }
}

// ---- one recording ----

std::string choose_options(Random& random, Recording& r) {
  std::string options = r.folder.options();
  const auto add = [&](const std::string& option) { options += option + ";"; };
  add("cupti=" + std::string(fake_path()));
  add("flush_ms=" + std::to_string(random.between(1, 20)));
  add("patience_ms=" + std::to_string(random.between(200, kMostPatience)));
  switch (random.below(6)) {
    case 0: add("kinds=nvtx"), r.kernels = false; break;
    case 1: add("kinds=kernel,api"), r.nvtx = false; break;
    case 2: add("kinds=kernel,nvtx"); break;
    case 3: add("nvtx=0"), r.nvtx = false; break;
    default: break;
  }
  if (random.one_in(3)) add("sync=0");
  if (random.one_in(3)) add("buffer_size=" + random.of<std::string>({"4096", "8192", "65536"}));
  if (random.one_in(4)) add("max_memory=" + std::to_string(random.between(2 << 20, 8 << 20)));
  if (random.one_in(4)) add("share=1");
  if (random.one_in(4)) add("code=1");
  if (random.one_in(3)) add("finalize=1");
  if (random.one_in(8)) add("graph=graph");
  const auto keep = random.below(6);
  if (keep == 0) add("last_ms=" + std::to_string(random.between(20, 300)));
  if (keep == 1) add("rotate=1"), add("max_size=" + std::to_string(random.between(1 << 20, 4 << 20)));
  if (keep == 2) add("max_size=" + std::to_string(random.between(200'000, 1'000'000)));
  r.newest = keep < 2;
  r.armed = r.newest && random.one_in(2);
  if (r.armed) add("dump=" + r.folder.path + "/dumps/run.bin");
  if (r.armed && random.one_in(2)) {
    for (const char* condition : {"nvtx:* > 2ms", "nvtx:*1? > 3x median", "gpu idle > 3ms", "memory > 1"})
      if (random.one_in(2)) add("dump_when=" + std::string(condition));
    add("dump_pause_ms=" + std::to_string(random.between(1, 50)));
  }
  return options;
}

void end_faults() {
  fault_writes(0, 0, 0);
  fault_short_writes(0);
  fault_interrupted_writes(0);
  fault_slow_writes(0);
  fault_allocations(0, 0, true);
  fault_copies(0, 0);
  fault_hold_copies(false);
  fault_nameless_files(0);
  fake_set_flush_delay(0);
  fake_slow_callbacks(0);
  fake_delay_enabling(0);
  fake_delay_subscribing(0);
}

struct Fault {
  const char* name;
  void (*begin)(Random&);
};
constexpr Fault kFaults[] = {
    {"disk", [](Random& r) { fault_writes(r.of({ENOSPC, EIO}), r.few(0, 20), r.few(1, 1000)); }},
    {"short writes", [](Random& r) { fault_short_writes(r.between(1, 5000)); }},
    {"interrupted writes", [](Random& r) { fault_interrupted_writes(r.few(1, 20)); }},
    {"slow disk", [](Random& r) { fault_slow_writes(r.between(100'000, 3'000'000)); }},
    {"slow copies", [](Random& r) { fault_copies(0, r.few(1, 100)); }},
    {"failing copies", [](Random&) { fault_copies(ENOSPC, 0); }},
    {"stuck copies", [](Random&) { fault_hold_copies(true); }},
    {"no nameless files", [](Random&) { fault_nameless_files(EOPNOTSUPP); }},
    {"memory", [](Random& r) { fault_allocations(r.few(0, 300), r.few(1, 20), true); }},
    {"memory of callers", [](Random& r) { fault_allocations(r.few(0, 300), r.few(1, 5), false); }},
    {"stuck flush", [](Random& r) { fake_set_flush_delay(r.few(1, 4) * kMostPatience); }},
    {"slow flush", [](Random& r) { fake_set_flush_delay(r.few(1, 100)); }},
    {"slow callbacks", [](Random& r) { fake_slow_callbacks(r.few(1, 300)); }},
    {"slow enabling", [](Random& r) { fake_delay_enabling(r.few(1, 30)); }},
    {"slow subscribing", [](Random& r) { fake_delay_subscribing(r.few(1, 100)); }},
    {"stuck GPU",
     [](Random& r) {
       const std::uint32_t one[3] = {1, 1, 1};
       const std::uint64_t time = r.between(1, 4) * kMostPatience * 1'000'000;
       if (program->driver) program->launch_long("cudaLaunchKernel", "long", one, one, 7, time, 0, 0);
     }},
};

// Starts a fault: operations fail or take long from now on.
std::string begin_fault(Random& random) {
  std::vector<Fault> allowed;
  for (const Fault& fault : kFaults)
    if (program->faults.empty() || ("," + program->faults + ",").find(std::string(",") + fault.name + ",") != std::string::npos)
      allowed.push_back(fault);
  if (allowed.empty()) return "";
  const Fault& fault = allowed[random.below(allowed.size())];
  fault.begin(random);
  counts().add(std::string("fault: ") + fault.name);
  return fault.name;
}

void attach(const std::shared_ptr<Recording>& recording) {
  TIMED("inject", program->collector.inject());
  if (recording->stop_called != kNever) program->tell("stopped while it was attached");
  fake_create_context();
  fake_load_module();
  if (program->collector.statistics().cupti_active == 0) return;
  program->initialised = true;
  recording->attached = program->now();
  if (recording->stop_called == kNever) program->attached = recording.get();
}

// False when the start was refused.
bool record(Random& random, bool after_trouble, std::vector<std::shared_ptr<Recording>>& recordings) {
  Program& p = *program;
  auto recording = std::make_shared<Recording>();
  std::filesystem::create_directory(recording->folder.path + "/dumps");
  recording->options = choose_options(random, *recording);
  p.tell("recording " + recording->options);
  fake_can_share(random.one_in(2));
  fake_deliver_late_and_reversed(random.one_in(3));
  const unsigned finalized = fake_finalized();
  std::string early;
  if (random.one_in(4)) recording->faults = early = begin_fault(random);
  {
    p.gate_wanted = true;
    const std::unique_lock gate(p.gate);
    p.gate_wanted = false;
    recording->start_called = p.now();
    if (TIMED("start", p.collector.start(recording->options.c_str())) != 0) {
      const std::string error = p.collector.last_error();
      end_faults();
      p.tell("refused: " + error);
      CHECK(!error.empty());
      CHECK(after_trouble || !early.empty());
      counts().add("start: refused");
      return false;
    }
    recording->started = p.now();
    if (p.driver && p.collector.statistics().cupti_active != 0) recording->attached = p.now();
    p.current = recording;
  }
  recordings.push_back(recording);
  std::thread injector;
  const auto how = random.below(8);
  if (how < 4) attach(recording);
  else if (how < 7) injector = std::thread([&] { attach(recording); });
  sleep_us(random.below(60'000));
  if (random.one_in(2)) {
    const std::string fault = begin_fault(random);
    if (!fault.empty()) recording->faults += " " + fault;
    if (!fault.empty()) p.tell("fault: " + fault);
  }
  sleep_us(random.below(200'000));
  const bool in_trouble = !random.one_in(3);  // the fault lasts beyond the end
  if (!in_trouble) end_faults();
  const bool graph_ran = p.graph_ran;
  if (random.one_in(3)) std::thread([&] { stop_recording(recording); }).join();
  else stop_recording(recording);
  if (injector.joinable()) injector.join();
  p.attached = nullptr;
  fault_hold_copies(false);  // a thread that dumps shares the gate
  {
    p.gate_wanted = true;
    const std::unique_lock gate(p.gate);  // other stopping threads have returned
    p.gate_wanted = false;
    p.current = nullptr;
  }
  end_faults();
  CHECK(recording->stopped != -1);
  if (fake_finalized() != finalized) counts().add("CUPTI finalised");
  if (graph_ran) CHECK_EQUAL(fake_finalized(), finalized);
  p.tell("stopped: " + std::to_string(recording->stopped) + " " + recording->stop_error);
  counts().add(recording->stopped == 0 ? "recordings ended in order" : "recordings that said they failed");
  return true;
}

// ---- the contents of the files ----

struct Found {
  std::unordered_set<std::uint64_t> kernels, marks, ranges;
  std::size_t calls = 0, open_ranges = 0, origins = 0, unnamed = 0;
  std::map<std::pair<rows::Loss, std::string>, std::uint64_t> losses;
  bool ended = false;
  std::uint64_t lost(rows::Loss reason) const {
    std::uint64_t count = 0;
    for (const auto& [key, n] : losses) count += key.first == reason ? n : 0;
    return count;
  }
  // The number of CUPTI's records that the collector did not get or did not read.
  std::uint64_t not_read() const {
    std::uint64_t count = lost(rows::Loss::cupti_dropped);
    for (const char* of : {"activity records", "buffers that were not read"})
      if (const auto it = losses.find({rows::Loss::memory_limit, of}); it != losses.end()) count += it->second;
    return count;
  }
  std::uint64_t dropped_events(const std::string& of) const {
    std::uint64_t count = 0;
    for (const auto& [key, n] : losses)
      if (key.first == rows::Loss::nvtx_dropped && key.second.starts_with(of)) count += n;
    return count;
  }
  // Complete rows that are not in the files, by table.
  std::uint64_t lost_rows(const std::string& table) const {
    std::uint64_t count = 0;
    for (const rows::Loss reason : {rows::Loss::size_limit, rows::Loss::write_error, rows::Loss::let_go})
      if (const auto it = losses.find({reason, table}); it != losses.end()) count += it->second;
    return count;
  }
};

using Items = std::unordered_map<std::uint64_t, Item>;

std::uint64_t serial_of(const std::string& name, const std::string& prefixes) {
  if (name.size() < 2 || prefixes.find(name[0]) == std::string::npos)
    check::failed(__FILE__, __LINE__, "not a name of this program: " + name);
  return std::stoull(name.substr(1));
}

// Adds the contents of a file of this recording. No event is in the file twice, and none is from outside its time.
void read(const CaptureReader& c, const Recording& r, const Items& items, Found& found) {
  std::string row;
  const auto note = [&](std::unordered_set<std::uint64_t>& seen, Kind kind, std::uint64_t serial) -> const Item& {
    const auto it = items.find(serial);
    const auto fail = [&](const char* why) {
      constexpr const char* kNames[] = {"kernel ", "mark ", "range "};
      check::failed(__FILE__, __LINE__, kNames[static_cast<int>(kind)] + std::to_string(serial) + " " + why + "; " + row + r.options +
                                            "\nstarted at " + std::to_string(r.started) +
                                            (it == items.end() ? "" : ", the item ended at " + std::to_string(it->second.ended)));
    };
    if (it == items.end()) fail("is of an earlier round");
    const Item& item = it->second;
    if (item.kind != kind) fail("is something else");
    if (!seen.insert(serial).second) fail("is there twice");
    // After a stop that gave up, a stuck part still uses CUPTI, so later events of the program may be in the file.
    if ((item.began > r.stop_returned && r.stopped == 0) || item.ended < r.start_called)
      fail("was not done during the recording");
    return item;
  };
  std::map<std::uint64_t, std::uint32_t> nodes;  // ids of their ranges
  for (const auto& node : c.rows<rows::GraphNodes>()) nodes[std::uint64_t{node.graph_node}] = node.ranges;
  struct Launch {
    std::uint32_t name;
    std::uint64_t graph_node;
  };
  std::map<std::uint32_t, Launch> names;
  for (const auto& launch : c.rows<rows::Launches>()) names[std::uint32_t{launch.id}] = {launch.name, launch.graph_node};
  for (const auto& kernel : c.rows<rows::Kernels>()) {
    const auto launch = names.find(std::uint32_t{kernel.launch});
    if (launch == names.end()) check::failed(__FILE__, __LINE__, "no launch for a kernel; options: " + r.options + "; faults:" + r.faults);
    const std::string& name = c.text(launch->second.name);
    if (name == "long") continue;
    if (name == "g") {
      // Each node has the right ranges or none. A range from before the recording does not count.
      const auto node = nodes.find(launch->second.graph_node);
      const std::string& text = c.text(node != nodes.end() ? node->second : 0);
        CHECK(text.empty() || text.ends_with("\"" + ::name('p', kernel.stream) + "\"]"));
      found.origins += !text.empty();
      continue;
    }
    if (name == "(unknown kernel)") {
      ++found.unnamed;
      continue;
    }
    CHECK(name == "k" || name.starts_with('u'));
    row = name + " of launch " + std::to_string(kernel.correlation) + " at " + std::to_string(kernel.start) + "; ";
    note(found.kernels, Kind::kernel, name == "k" ? kernel.stream : serial_of(name, "u"));
  }
  row.clear();
  for (const auto& call : c.rows<rows::ApiCalls>()) found.calls += call.thread == 4242;
  for (const auto& mark : c.rows<rows::NvtxMarks>()) {
    const std::string& name = c.text(mark.name);
    if (mark.source == 1 && name.starts_with("dump: ")) continue;  // of a trigger
    const bool registered = name.starts_with("registered ");
    CHECK(!registered || c.text(mark.domain) == "random");
    const Item& item = note(found.marks, Kind::mark, registered ? mark.payload : serial_of(name, "m"));
    CHECK(mark.time >= item.began && mark.time <= item.ended);
  }
  for (const auto& range : c.rows<rows::NvtxRanges>()) {
    const Item& item = note(found.ranges, Kind::range, serial_of(c.text(range.name), "ps"));
    CHECK(range.start >= item.began && range.start <= item.opened);
    found.open_ranges += range.flags & 1;
  }
  for (const auto& loss : c.rows<rows::Losses>())
    found.losses[{static_cast<rows::Loss>(std::uint16_t{loss.reason}), c.text(loss.detail)}] += loss.count;
}

// Without lost events, a range ends with its own pop.
void check_ends(const CaptureReader& c, const Items& items) {
  for (const auto& range : c.rows<rows::NvtxRanges>()) {
    const Item& item = items.at(serial_of(c.text(range.name), "ps"));
    if (range.flags != 0 || (range.end >= item.closing && range.end <= item.ended)) continue;
    check::failed(__FILE__, __LINE__,
                  c.text(range.name) + " began at " + std::to_string(range.start) + " and ended at " + std::to_string(range.end) +
                      ", not from " + std::to_string(item.closing) + " to " + std::to_string(item.ended));
  }
}

// The threads that write dumps have ended.
void wait_for_dumps() {
  const auto is_dumping = [](const auto& task) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    return std::getline(file, name) && name == "cutrace-dump";
  };
  for (;; sleep_us(1000)) {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    if (std::none_of(begin(tasks), end(tasks), is_dumping)) return;
  }
}

bool is_child(const std::string& path) {
  const std::string file = path.substr(path.rfind('/') + 1);
  return std::isdigit(static_cast<unsigned char>(file[0])) && std::stoi(file) != getpid();
}

void judge(const Recording& r, const Items& items) {
  Found found;
  const bool orderly = r.stopped == 0;
  bool empty = false;
  const bool torn = !orderly || r.faults.find("disk") != std::string::npos || r.faults.find("writes") != std::string::npos;
  std::vector<CaptureReader> files;
  for (const auto& entry : std::filesystem::directory_iterator(r.folder.path)) {
    const std::string path = entry.path();
    if (entry.is_directory()) continue;
    if (orderly) CHECK(!path.ends_with(".next"));
    if (std::filesystem::file_size(path) == 0 && (!orderly || !r.faults.empty())) {
      empty = true;  // the disk took nothing after a cut
      continue;
    }
    if (is_child(path)) {
      for (const auto& mark : CaptureReader(path, true).rows<rows::NvtxMarks>()) CHECK(mark.time >= r.start_called);
      continue;
    }
    files.emplace_back(path, torn);
    read(files.back(), r, items, found);
  }
  const auto last = std::ranges::max_element(files, {}, &CaptureReader::next_block);
  found.ended = !empty && last != files.end() && last->says("\"ended\"");
  for (const auto& entry : std::filesystem::directory_iterator(r.folder.path + "/dumps")) {
    Found in_dump;
    const CaptureReader dump(entry.path(), torn);
    read(dump, r, items, in_dump);
    if (!torn) CHECK(dump.says("\"ended\""));
    counts().add(dump.says("dumped_because") ? "dumps by triggers that were read" : "dumps that were read");
  }
  const std::uint64_t dropped_nvtx = found.dropped_events("NVTX");
  const std::uint64_t dropped = dropped_nvtx + found.dropped_events("events");  // also of graph nodes and names
  if (dropped == 0 && orderly && found.ended)
    for (const CaptureReader& c : files) check_ends(c, items);

  // Events that certainly happened during the recording, and events that perhaps did.
  std::uint64_t kernels = 0, marks = 0, ranges = 0, maybe_kernels = 0, maybe_nvtx = 0;
  std::uint64_t missing_kernels = 0, missing_marks = 0, missing_ranges = 0;
  for (const auto& [serial, item] : items) {
    if (item.began > r.stop_returned || item.ended < r.start_called) continue;
    const bool kernel = item.kind == Kind::kernel;
    if (kernel ? !r.kernels : !r.nvtx) continue;
    const bool sure = item.began >= (kernel ? r.attached.load() : r.started) && item.ended <= r.stop_called;
    if (!sure) {
      ++(kernel ? maybe_kernels : maybe_nvtx);
    } else if (kernel) {
      ++kernels;
      missing_kernels += !found.kernels.contains(serial);
    } else if (item.kind == Kind::mark) {
      ++marks;
      missing_marks += !found.marks.contains(serial);
    } else {
      ++ranges;
      missing_ranges += !found.ranges.contains(serial);
    }
  }
  const std::uint64_t not_read = found.not_read();
  const std::uint64_t lost_kernels = not_read + found.lost_rows("kernels") + found.unnamed;
  const std::uint64_t kept_back = found.lost(rows::Loss::kept_back);
  const std::uint64_t lost_marks = found.lost_rows("nvtx_marks"), lost_ranges = found.lost_rows("nvtx_ranges");
  counts().add("rows: produced", kernels + marks + ranges);
  counts().add("rows: recorded", found.kernels.size() + found.marks.size() + found.ranges.size());
  counts().add("rows: kernels of graphs with their ranges", found.origins);
  counts().add("rows: counted as lost", lost_kernels + dropped + lost_marks + lost_ranges);
  const std::string numbers =
      "kernels " + std::to_string(kernels) + " missing " + std::to_string(missing_kernels) + " counted " +
      std::to_string(lost_kernels) + "; marks " + std::to_string(marks) + " missing " + std::to_string(missing_marks) +
      " counted " + std::to_string(lost_marks) + "; ranges " + std::to_string(ranges) + " missing " +
      std::to_string(missing_ranges) + " counted " + std::to_string(lost_ranges) + "; NVTX events counted " +
      std::to_string(dropped) + "; around the ends " + std::to_string(maybe_kernels) + " kernels " +
      std::to_string(maybe_nvtx) + " of NVTX; ended " + std::to_string(found.ended);
  std::string losses;
  for (const auto& [key, count] : found.losses)
    losses += "\n  loss " + std::to_string(static_cast<int>(key.first)) + " '" + key.second + "' " + std::to_string(count);
  program->tell("judged: " + r.options + "\n  faults:" + r.faults + "\n  " + numbers + losses);
  if (!r.nvtx) CHECK(found.marks.empty() && found.ranges.empty());
  if (!orderly || !found.ended) {  // the recording has noted it
    counts().add("rows: missing where that was said", missing_kernels + missing_marks + missing_ranges);
    if (orderly) CHECK(!r.faults.empty());
    return;
  }
  const bool says_missing = r.notes.find("missing") != std::string::npos;
  if (!says_missing && kept_back == 0) CHECK(missing_kernels <= lost_kernels);
  CHECK(missing_marks <= dropped + lost_marks);
  CHECK(missing_ranges <= dropped + lost_ranges);
  CHECK(missing_marks + missing_ranges <= dropped + lost_marks + lost_ranges);
  // The count does not exceed the number of events. A lost range is two events, an open range has lost one.
  CHECK(dropped_nvtx <= missing_marks + 2 * missing_ranges + found.open_ranges + 2 * maybe_nvtx);
  if (!r.kernels) CHECK_EQUAL(not_read, std::uint64_t{0});
}

// A few consecutive recordings of a running program.
void run_round(std::uint64_t seed, bool& after_trouble) {
  Random random(seed);
  Program& p = *program;
  p.over = false;
  p.items.clear();
  p.story = "round " + std::to_string(seed) + "\n";
  std::vector<std::thread> threads;
  for (auto n = random.between(1, 3); n > 0; --n) threads.emplace_back(produce, random());
  for (auto n = random.between(0, 2); n > 0; --n) threads.emplace_back(call, random());
  std::vector<std::shared_ptr<Recording>> recordings;
  for (auto n = random.between(1, 3); n > 0; --n) {
    const auto give_up = Clock::now() + std::chrono::milliseconds(2 * kLongestCall);
    bool began = false;
    while (!(began = record(random, after_trouble, recordings)) && Clock::now() < give_up) sleep_us(20'000);
    CHECK(began);
    after_trouble = recordings.back()->stopped != 0;
  }
  p.over = true;
  for (auto& thread : threads) thread.join();
  wait_for_dumps();
  Items items;
  for (const Item& item : p.items) CHECK(items.emplace(item.serial, item).second);
  for (const auto& recording : recordings) judge(*recording, items);
  counts().add("recordings", recordings.size());
}

void load_driver() {
  void* library = dlopen(DRIVER_PATH, RTLD_NOW);
  CHECK(library != nullptr);
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "fake_gpu_init"));
  program->launch_long = reinterpret_cast<decltype(program->launch_long)>(dlsym(library, "fake_gpu_launch"));
  CHECK_EQUAL(init(), 0);
  program->driver = true;
}

}  // namespace

int main(int argc, char** argv) {
  long seconds = 10, rounds = std::numeric_limits<long>::max();
  std::uint64_t seed = 1;
  std::string faults;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--seconds") seconds = std::stol(argv[i + 1]);
    else if (std::string(argv[i]) == "--rounds") rounds = std::stol(argv[i + 1]);
    else if (std::string(argv[i]) == "--seed") seed = std::stoull(argv[i + 1]);
    else if (std::string(argv[i]) == "--faults") faults = argv[i + 1];
    else return std::fprintf(stderr, "usage: test_random [--seconds N | --rounds N] [--seed S] [--faults NAME,...]\n"), 2;
  }
  setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
  program = new Program(seed);
  program->faults = faults;
  check::about = about;
  program->domain = nvtxDomainCreateA("random");
  if (seed % 2 == 0) load_driver();
  program->graphs = seed % 3 != 0;
  Watch::watch();
  Random random(seed);
  bool after_trouble = false;
  const bool timed = rounds == std::numeric_limits<long>::max();
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  while (timed ? Clock::now() < end : rounds-- > 0) run_round(random(), after_trouble);
  std::printf("seed %llu\n%s", static_cast<unsigned long long>(seed), counts().text().c_str());
  std::printf("  writes that failed %llu, allocations that failed %llu\n", static_cast<unsigned long long>(fault_count()),
              static_cast<unsigned long long>(fault_allocations_failed()));
  return 0;
}
