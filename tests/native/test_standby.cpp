// The socket of a process on standby: its protocol, unusual peers, and concurrent requests for recordings. Whole programs are in
// tests/faults/test_standby.py.
#include "collector/features/standby/standby.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "capture_reader.h"
#include "collector_under_test.h"

using namespace cutrace;

// The number of unlocks of an unlocked mutex. Sanitizers replace this function themselves.
static std::atomic<int> wrong_unlocks{0};
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  static auto* const next = reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_unlock"));
  if (mutex->__data.__lock == 0) ++wrong_unlocks;
  return next(mutex);
}
#endif

// While this is set, pauses of 100 ms do not end.
static std::atomic<bool> hold_pauses{false};
static std::atomic<int> held_pauses{0};
extern "C" int nanosleep(const timespec* time, timespec* left) {
  static auto* const next = reinterpret_cast<int (*)(const timespec*, timespec*)>(dlsym(RTLD_NEXT, "nanosleep"));
  const timespec short_time{0, 1'000'000};
  if (!hold_pauses || time->tv_nsec != 100'000'000) return next(time, left);
  for (++held_pauses; hold_pauses;) next(&short_time, nullptr);
  return 0;
}

// Registered before the handlers of the collector.
static void (*older_handler)() = nullptr;
static const int registered = pthread_atfork([] { if (older_handler != nullptr) older_handler(); }, nullptr, nullptr);

namespace {

constexpr int kPatience = 20'000;

// This process on standby, with its socket in a folder of the test.
struct Standby {
  explicit Standby(const std::string& more = "") {
    CHECK(setenv("XDG_RUNTIME_DIR", folder.path.c_str(), 1) == 0);
    CHECK(setenv("CUTRACE_OPTIONS", ("standby=1;cupti=" + std::string(fake_path()) + ";" + more).c_str(), 1) == 0);
    CHECK_EQUAL(collector.inject(), 1);
    fake_create_context();
    fake_load_module();
  }
  std::string socket_path() const {
    const auto found = std::filesystem::directory_iterator(folder.path + "/cutrace");
    return found->path();
  }
  std::string capture(const std::string& name) const { return folder.path + "/" + name; }

  Folder folder;
  Collector collector;
};

class Client {
 public:
  explicit Client(const Standby& standby) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s", standby.socket_path().c_str());
    CHECK(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  ~Client() { ::close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(const std::string& text) const {
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;  // the process has closed the connection
      sent += static_cast<std::size_t>(n);
    }
  }
  // The next line, "" at the end of the connection.
  std::string line() {
    for (;;) {
      if (const std::size_t end = received_.find('\n'); end != std::string::npos) {
        const std::string found = received_.substr(0, end);
        received_.erase(0, end + 1);
        return found;
      }
      pollfd file{fd_, POLLIN, 0};
      CHECK(::poll(&file, 1, kPatience) == 1);
      char bytes[4096];
      const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
      if (n <= 0) return {};
      received_.append(bytes, static_cast<std::size_t>(n));
    }
  }
  std::string ask(const std::string& request) {
    send(request + "\n");
    return line();
  }

 private:
  int fd_;
  std::string received_;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void launch(int count) {
  for (int i = 0; i < count; ++i) fake_launch("k", 1, 1, false);
}

void wait_until_idle(const Collector& collector) {
  for (int i = 0; collector.running() != 0; ++i) {
    CHECK(i < kPatience);
    sleep_ms(1);
  }
}

std::size_t kernels(const std::string& path) {
  const CaptureReader capture(path);
  CHECK(capture.says("\"ended\""));
  return capture.rows<rows::Kernels>().size();
}

}  // namespace

TEST(a_process_on_standby_has_no_subscriber) {
  const Standby standby;
  CHECK_EQUAL(fake_subscribers(), 0u);
  CHECK_EQUAL(standby.collector.running(), 0);
  Client client(standby);
  CHECK(contains(client.line(), "\"protocol\":1"));
  CHECK(contains(client.ask("status"), "\"cuda\":true,\"recording\":null"));
}

TEST(recordings_of_one_connection_are_complete) {
  const Standby standby("api=none");
  Client client(standby);
  client.line();
  for (int i = 1; i <= 3; ++i) {
    const std::string path = standby.capture(std::to_string(i) + ".bin");
    launch(10);
    CHECK(contains(client.ask("start output=" + path), "\"cupti\":true,\"notes\":[]"));
    CHECK(contains(client.ask("start output=" + path), "it is being recorded by the attach of process "));
    launch(100 * i);
    CHECK(contains(client.ask("status"), "\"by\":\"attach\",\"pid\":" + std::to_string(getpid())));
    CHECK(contains(client.ask("stop"), "\"rows\":"));
    CHECK_EQUAL(fake_subscribers(), 0u);
    CHECK_EQUAL(kernels(path), std::size_t(100 * i));
    CHECK(CaptureReader(path).rows<rows::ApiCalls>().empty());  // a default of the process
  }
  CHECK(contains(client.ask("stop"), "this connection records nothing"));
}

TEST(the_end_of_a_connection_ends_its_recording) {
  const Standby standby;
  const std::string path = standby.capture("run.bin");
  {
    Client client(standby);
    client.line();
    CHECK(contains(client.ask("start output=" + path), "\"cupti\":true"));
    launch(50);
    Client second(standby);
    second.line();
    CHECK(contains(second.ask("start output=" + path), "error"));
    CHECK(contains(second.ask("stop"), "error"));
    CHECK_EQUAL(standby.collector.running(), 1);
  }
  wait_until_idle(standby.collector);
  Client next(standby);
  next.line();  // after the file is closed
  CHECK_EQUAL(kernels(path), std::size_t{50});
}

TEST_OF_THREADS(calls_that_have_not_returned_are_waited_for_at_the_end) {
  const Standby standby;
  Client client(standby);
  client.line();
  const std::string path = standby.capture("run.bin");
  CHECK(contains(client.ask("start output=" + path), "\"cupti\":true"));
  std::atomic<bool> launched{false}, stopping{false};
  std::thread program([&] {
    fake_hold_buffer(true);  // CUPTI keeps the buffer of a thread inside a call
    launch(50);
    launched.store(true);
    while (!stopping.load()) sleep_ms(1);
    sleep_ms(30);
    fake_hold_buffer(false);
  });
  while (!launched.load()) sleep_ms(1);
  stopping.store(true);
  client.ask("stop");
  program.join();
  CHECK_EQUAL(kernels(path), std::size_t{50});
}

TEST_OF_THREADS(calls_that_do_not_return_are_counted_at_the_end) {
  const Standby standby;
  Client client(standby);
  client.line();
  const auto kept_back = [&](const std::string& name, bool ends) {
    const std::string path = standby.capture(name);
    CHECK(contains(client.ask("start output=" + path), "\"cupti\":true"));
    launch(1);
    std::thread program([&] {
      fake_hold_buffer(!ends);
      launch(50);
    });
    program.join();
    client.ask("stop");
    const CaptureReader capture(path);
    CHECK(capture.says("\"ended\""));
    CHECK_EQUAL(capture.rows<rows::Kernels>().size(), std::size_t(ends ? 51 : 1));
    for (const auto& loss : capture.rows<rows::Losses>()) CHECK(contains(capture.text(loss.detail), "records of the last "));
    return capture.lost(rows::Loss::kept_back);
  };
  CHECK_EQUAL(kept_back("1.bin", false), std::uint64_t{1});
  CHECK_EQUAL(fake_finalized(), 0u);
  CHECK_EQUAL(kept_back("2.bin", true), std::uint64_t{0});  // the buffer of the previous recording does not belong to this one
}

TEST(strange_requests_are_refused) {
  const Standby standby;
  Client owner(standby);
  owner.line();
  CHECK(contains(owner.ask("start output=/nowhere/run.bin"), "choose a folder that exists and is writable"));
  CHECK(contains(owner.ask("start standby=1"), "error"));
  CHECK(contains(owner.ask("start"), "either directory=DIR or output=FILE"));
  CHECK(contains(owner.ask("start output=" + standby.capture("run.bin")), "\"cupti\":true"));
  for (const char* request : {"", " ", "stop now", "dump", "Status", "start=", "\x01\xff\xfe", "{\"stop\":1}"}) {
    Client client(standby);
    client.line();
    CHECK(contains(client.ask(request), "error"));
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    Client client(standby);
    std::string bytes(random() % 3000, ' ');
    for (char& byte : bytes) byte = static_cast<char>(random());
    client.send(bytes);
    if (i % 3 == 0) client.line();
  }
  Client endless(standby);
  endless.line();
  endless.send(std::string(100'000, 'x'));
  CHECK(contains(endless.line(), "the request is too long"));
  CHECK_EQUAL(endless.line(), std::string());
  // More peers than slots: the oldest are closed, but the peer that records stays.
  std::vector<std::unique_ptr<Client>> many;
  for (int i = 0; i < 30; ++i) many.push_back(std::make_unique<Client>(standby));
  CHECK(contains(many.back()->line(), "protocol"));
  launch(20);
  owner.ask("stop");
  CHECK_EQUAL(kernels(standby.capture("run.bin")), std::size_t{20});
}

TEST(a_peer_that_does_not_read_is_dropped) {
  const Standby standby;
  Client reader(standby);
  reader.send([] {
    std::string requests;
    for (int i = 0; i < 20'000; ++i) requests += "status\n";
    return requests;
  }());
  Client client(standby);
  CHECK(contains(client.line(), "protocol"));
  CHECK(contains(client.ask("status"), "\"recording\":null"));
}

TEST(a_fork_does_not_wait_for_a_free_descriptor) {
  const Standby standby;
  const int late = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", standby.socket_path().c_str());
  // UndefinedBehaviorSanitizer opens a pipe when it sees a class for the first time.
  if (const pid_t child = ::fork(); child == 0) ::_exit(0);
  else CHECK(::waitpid(child, nullptr, 0) == child);
  rlimit before{};
  CHECK(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{64, before.rlim_max};
  CHECK(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::vector<int> files;
  for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) files.push_back(fd);
  hold_pauses = true;
  CHECK(::connect(late, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  while (held_pauses == 0) sleep_ms(1);  // until the thread of standby has tried to accept
  const pid_t child = ::fork();  // hangs if it waits for the end of the pause
  if (child == 0) ::_exit(0);
  CHECK(::waitpid(child, nullptr, 0) == child);
  hold_pauses = false;
  for (const int fd : files) ::close(fd);
  CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  pollfd file{late, POLLIN, 0};
  CHECK(::poll(&file, 1, kPatience) == 1);  // the greeting
  ::close(late);
}

// No handler of fork() runs.
TEST(a_clone_that_exits_leaves_the_standby_of_its_parent_alone) {
  Standby standby;
  void (*exit_handlers)() = nullptr;
  standby.collector.find(exit_handlers, "cutrace_exit");
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (child == 0) {
    exit_handlers();
    ::_exit(0);
  }
  CHECK(::waitpid(child, nullptr, 0) == child);
  Client client(standby);
  CHECK(contains(client.line(), "protocol"));
}

TEST_OF_THREADS(a_child_that_goes_on_standby_while_it_forks) {
  const Standby standby;
  // A handler older than the collector's handlers runs between them.
  static std::atomic<bool> forking{false}, on_standby{false};
  CHECK(older_handler == nullptr);
  older_handler = [] {
    forking = true;
    for (int i = 0; i < 200 && !on_standby; ++i) sleep_ms(1);  // as a rule the other thread has to wait
  };
  const pid_t child = ::fork();  // the handlers are installed, and it is not on standby
  if (child == 0) {
    const int before = wrong_unlocks;  // of a fork without these handlers
    forking = false;
    std::thread beginning([&] {
      while (!forking) sleep_ms(1);
      standby.collector.inject();
      on_standby = true;
    });
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(wrong_unlocks != 2 * before ? 3 : 0);
    int status = 0;
    ::waitpid(grandchild, &status, 0);
    beginning.join();
    ::_exit(status != 0 ? 1 : wrong_unlocks != before ? 2 : 0);
  }
  int status = 0;
  CHECK_EQUAL(::waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
}

TEST(cupti_is_finalized_after_an_attachment_and_works_again) {
  const Standby standby;
  Client client(standby);
  client.line();
  for (unsigned number = 1; number <= 3; ++number) {
    const std::string path = standby.capture(std::to_string(number) + ".bin");
    CHECK(!contains(client.ask("start output=" + path), "error"));
    launch(100);
    client.ask("stop");
    CHECK_EQUAL(fake_finalized(), number);
    CHECK_EQUAL(kernels(path), std::size_t{100});
    CHECK(!CaptureReader(path).says("REALTIME"));  // the clock is set again
  }
}

TEST(cupti_is_not_finalized_after_a_graph_has_run_or_records_were_dropped) {
  for (const bool graph : {true, false}) {
    const pid_t child = ::fork();  // it stays for the rest of the process
    if (child == 0) {
      const Standby standby;
      Client client(standby);
      client.line();
      const std::uint32_t nodes = fake_graph();
      fake_graph_add(nodes, "k");
      const std::uint32_t exec = fake_graph_instantiate(nodes);
      for (const bool runs : {true, false}) {
        const std::string path = standby.capture(runs ? "1.bin" : "2.bin");
        if (contains(client.ask("start output=" + path), "error")) ::_exit(1);
        launch(1);
        if (runs && graph) fake_graph_replay(exec, 7);
        if (runs && !graph) fake_drop(1);
        client.ask("stop");
      }
      ::_exit(fake_finalized() == 0 ? 0 : 2);
    }
    int status = 0;
    CHECK_EQUAL(::waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
  }
}

TEST(cupti_is_not_finalized_without_the_option_nor_while_it_is_shared) {
  const Standby standby;
  Client client(standby);
  client.line();
  CHECK(!contains(client.ask("start finalize=0;output=" + standby.capture("1.bin")), "error"));
  launch(1);
  client.ask("stop");
  fake_can_share(true);
  CHECK(!contains(client.ask("start share=1;output=" + standby.capture("2.bin")), "error"));
  launch(1);
  client.ask("stop");
  CHECK_EQUAL(fake_finalized(), 0u);
}

TEST_OF_THREADS(the_program_and_attachers_start_recordings_at_once) {
  const Standby standby;
  std::atomic<bool> done{false};
  std::atomic<int> attached{0}, own{0};
  const auto attach = [&](int number) {
    const std::string path = standby.capture("attached" + std::to_string(number) + ".bin");
    while (!done.load()) {
      Client client(standby);
      client.line();
      if (contains(client.ask("start output=" + path), "error")) continue;
      if (++attached % 2 == 0) client.ask("stop");  // otherwise the end of the connection stops it
    }
  };
  std::thread program([&] {
    const std::string options = "output=" + standby.capture("own.bin") + ";cupti=" + fake_path();
    for (; !done.load(); sleep_ms(5)) {
      if (standby.collector.start(options.c_str()) != 0) continue;
      ++own;
      standby.collector.stop();
    }
  });
  std::thread launching([&] {
    while (!done.load()) launch(1);
  });
  std::thread first(attach, 1), second(attach, 2);
  for (int i = 0; i < 30'000 && (attached.load() < 6 || own.load() < 3); ++i) sleep_ms(1);
  done.store(true);
  for (std::thread* thread : {&program, &launching, &first, &second}) thread->join();
  CHECK(attached.load() >= 6);
  CHECK(own.load() >= 3);
  wait_until_idle(standby.collector);
}

TEST(only_the_user_and_root_may_attach) {
  CHECK(standby::may_attach(1000, 1000));
  CHECK(standby::may_attach(0, 1000));
  CHECK(!standby::may_attach(1001, 1000));
  CHECK(!standby::may_attach(1000, 0));
}

int main(int argc, char** argv) { return check::main(argc, argv); }
