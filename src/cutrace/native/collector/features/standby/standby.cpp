#include "standby.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "core/block_file.h"
#include "core/blocked_signals.h"
#include "core/clock.h"
#include "core/own_thread.h"
#include "common/private_folder.h"
#include "common/text.h"
#include "features/nvtx/nvtx.h"
#include "core/process.h"
#include "core/process_info.h"
#include "features/standby/first_work.h"

namespace cutrace::standby {
namespace {

constexpr std::size_t kConnections = 8;
constexpr std::size_t kLongestRequest = 64 << 10;

std::atomic<bool> cuda_used{false};

std::uint64_t unix_time() { return read_clock(CLOCK_REALTIME); }
void pause(unsigned milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// The start of this process in ticks since the boot. The pid and this time identify a process. "" without /proc.
std::string start_time() {
  std::array<char, 1024> text{};
  const int fd = ::open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t size = ::read(fd, text.data(), text.size() - 1);
  ::close(fd);
  std::string_view rest(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  // search from the end, because the name can contain parentheses and spaces
  rest.remove_prefix(std::min(rest.rfind(')'), rest.size()));
  constexpr int kField = 22, kAfterName = 2;
  for (int field = kAfterName; field < kField && !rest.empty(); ++field) next_word(rest, " ");
  return std::string(next_word(rest, " "));
}

// No fork() happens while this mutex is held. The child must not inherit an unknown descriptor, or a standby that only some of
// the fork handlers have seen. Never destroyed, like all objects that these handlers use.
std::mutex& no_fork = *new std::mutex;

struct Connection {
  Descriptor socket;
  std::string input;         // an incomplete line
  pid_t peer = 0;            // 0: a process of another container
  std::uint64_t number = 0;  // in the order of connecting

  bool open() const { return socket.number() >= 0; }
};

class Standby {
 public:
  explicit Standby(const Options& defaults)
      : defaults_("finalize=1\n" + defaults.text + "\nstandby=0\n"), patience_ms_(defaults.patience_ms) {}

  // Creates the socket and starts the thread.
  bool begin(std::string& error);
  // At exit: has the thread end the recording and itself, and waits for it.
  void leave();

  // The parent's peers must see the end of their connection when the parent ends, not when the child ends.
  void after_fork_in_child() {
    listener_.close();
    for (Connection& connection : connections_) connection.socket.close();
  }

 private:
  bool listen(std::string& error);
  bool listen_again(std::string& error);
  bool listen_in(int directory, const std::string& folder, std::string& error);
  void run();
  void serve();
  void accept();
  void read(Connection& connection);
  void drop(Connection& connection);
  void reply(Connection& connection, const JsonObject& message);

  void answer(Connection& connection, std::string_view request);
  JsonObject start(Connection& connection, std::string_view options);
  JsonObject stop(bool at_exit);
  JsonObject dump(std::string_view path) const;
  JsonObject status() const;

  std::string defaults_;
  std::uint32_t patience_ms_;
  std::string name_;  // of the socket
  std::string path_;
  Descriptor listener_;
  std::array<Connection, kConnections> connections_;
  std::uint64_t accepted_ = 0;
  const std::uint64_t since_ = unix_time();

  Connection* owner_ = nullptr;           // of the recording
  std::shared_ptr<Recording> recording_;  // the recording of `owner_`; the program may have ended it
  std::uint64_t recording_since_ = 0;

  std::atomic<bool> leaving_{false}, left_{false};
};

JsonObject failure(std::string_view sentence) {
  JsonObject json;
  json.text("error", sentence);
  return json;
}

void add_counters(JsonObject& json) {
  const struct cutrace_stats counters = process::statistics();
  json.number("rows", counters.rows_written);
  json.number("bytes", counters.bytes_written);
}

bool Standby::begin(std::string& error) {
  // A client chooses a library that the process loads. So it could get the rights of the program.
  if (::getauxval(AT_SECURE) != 0) return error = "this program has more rights than its user", false;
  const std::string started = start_time();
  if (started.empty()) return error = "/proc is not mounted", false;
  name_ = std::to_string(::getpid()) + '-' + started;
  if (!listen(error)) return false;
  const BlockedSignals blocked;
  try {
    std::thread thread(&Standby::run, this);
    ::pthread_setname_np(thread.native_handle(), "cutrace-standby");
    schedule_as_ordinary_thread(thread.native_handle());
    thread.detach();
    return true;
  } catch (const std::exception&) {
    ::unlink(path_.c_str());
    return error = "no thread can be started; raise the limit on threads (ulimit -u)", false;
  }
}

bool Standby::listen(std::string& error) {
  const UseFolder use = [this](int directory, const std::string& folder, std::string& reason) {
    return listen_in(directory, folder, reason);
  };
  return in_private_folder(use, error);
}

bool Standby::listen_again(std::string& error) {
  const std::lock_guard lock(no_fork);
  return listen(error);
}

bool Standby::listen_in(int directory, const std::string& folder, std::string& error) {
  path_ = folder + '/' + name_;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // This path is short for folder names of any length.
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", directory, name_.c_str());
  ::unlinkat(directory, name_.c_str(), 0);  // a socket from before exec, or a socket that the program has closed
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool good = fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                    ::listen(fd, SOMAXCONN) == 0;
  if (good) {
    listener_.set(fd);
    return true;
  }
  error = "cannot create the socket " + path_ + " (" + std::strerror(errno) + ")";
  if (fd >= 0) ::close(fd);
  return false;
}

void Standby::leave() {
  leaving_.store(true);
  // If the program has closed the socket, nothing can wake the thread. Its peers then see the end of the process.
  if (listener_.ours() && ::shutdown(listener_.number(), SHUT_RDWR) == 0)
    for (std::uint32_t waited = 0; !left_.load() && waited < patience_ms_; ++waited) pause(1);
  ::unlink(path_.c_str());
}

void Standby::run() {
  while (!leaving_.load()) {
    try {
      serve();
    } catch (const std::exception&) {  // no memory
      pause(100);
    }
  }
  if (owner_ != nullptr) {
    try {
      JsonObject message = stop(true);
      message.text("ended", "exit");
      reply(*owner_, message);
    } catch (const std::exception&) {
    }
  }
  left_.store(true);
}

void Standby::serve() {
  std::string error;
  // The program may have closed all descriptors, as daemons do.
  const bool listens = listener_.ours() || listen_again(error);
  std::array<pollfd, 1 + kConnections> files{};
  files[0] = {listens ? listener_.number() : -1, POLLIN, 0};
  for (std::size_t i = 0; i < kConnections; ++i) files[1 + i] = {connections_[i].socket.number(), POLLIN, 0};
  constexpr int kRetry = 1000;
  if (::poll(files.data(), files.size(), listens ? -1 : kRetry) < 0) return errno == EINTR ? void() : pause(100);
  for (std::size_t i = 0; i < kConnections && !leaving_.load(); ++i)
    if (files[1 + i].revents != 0) read(connections_[i]);
  if (files[0].revents != 0 && !leaving_.load()) accept();
}

void Standby::accept() {
  if (!listener_.ours()) return;
  std::unique_lock lock(no_fork);
  const int fd = ::accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    // Without a free descriptor the peer stays in the queue, and poll() would return at once.
    const bool waits = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
    lock.unlock();  // fork() needs the mutex
    if (waits) pause(100);
    return;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || !may_attach(peer.uid, ::geteuid())) {
    ::close(fd);
    return;
  }
  // A free slot, or the slot of the oldest peer without a recording.
  const auto place = std::ranges::min_element(connections_, {}, [&](const Connection& c) {
    return !c.open() ? 0 : &c == owner_ ? ~std::uint64_t{0} : c.number;
  });
  drop(*place);
  place->socket.set(fd);
  place->peer = peer.pid;
  place->number = ++accepted_;
  JsonObject greeting;
  greeting.text("cutrace", CUTRACE_VERSION);
  greeting.number("protocol", kProtocol);
  reply(*place, greeting);
}

void Standby::read(Connection& connection) {
  std::array<char, 4096> bytes;
  if (!connection.socket.ours()) return drop(connection);
  const ssize_t size = ::recv(connection.socket.number(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return drop(connection);
  connection.input.append(bytes.data(), static_cast<std::size_t>(size));
  for (std::size_t end = 0; connection.open() && (end = connection.input.find('\n')) != std::string::npos;) {
    const std::string request = connection.input.substr(0, end);
    connection.input.erase(0, end + 1);
    answer(connection, request);
  }
  if (connection.input.size() > kLongestRequest) {
    reply(connection, failure("the request is too long"));
    drop(connection);
  }
}

void Standby::drop(Connection& connection) {
  connection.socket.close();
  connection.input.clear();
  if (&connection == owner_) stop(false);
}

void Standby::reply(Connection& connection, const JsonObject& message) {
  const std::string line = message.str() + '\n';
  if (!connection.socket.ours()) return;
  // If the peer does not read its answers, end the connection.
  if (::send(connection.socket.number(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
      static_cast<ssize_t>(line.size()))
    ::shutdown(connection.socket.number(), SHUT_RDWR);
}

void Standby::answer(Connection& connection, std::string_view request) {
  const std::string_view verb = next_word(request, " ");
  const bool owns = &connection == owner_;
  if (verb == "start") return reply(connection, start(connection, request));
  if (verb == "status") return reply(connection, status());
  if (verb != "stop" && verb != "dump") return reply(connection, failure("the request is unknown"));
  if (!owns) return reply(connection, failure("this connection records nothing"));
  reply(connection, verb == "stop" ? stop(false) : dump(request));
}

JsonObject Standby::start(Connection& connection, std::string_view options) {
  if (owner_ != nullptr) {
    const std::string who = owner_->peer != 0 ? "process " + std::to_string(owner_->peer) : "a process of another container";
    return failure("it is being recorded by the attach of " + who + " for " +
                   std::to_string((unix_time() - recording_since_) / 1'000'000'000) + " s; wait or stop it");
  }
  if (process::current() != nullptr) return failure("the program itself is recording (cutrace.record()); wait until it has ended");
  first_work().expect();
  if (process::guarded([&] { return process::start_now((defaults_ + std::string(options)).c_str()); }) != 0)
    return failure(process::last_error());
  owner_ = &connection;
  recording_ = process::current();
  recording_since_ = unix_time();
  JsonObject json;
  json.number("since", recording_since_);
  json.raw("cuda", cuda_used.load() ? "true" : "false");
  json.raw("cupti", process::statistics().cupti_active != 0 ? "true" : "false");
  json.texts("notes", process::notes());
  return json;
}

// Ends the recording of `owner_`, unless the program has ended it.
JsonObject Standby::stop(bool at_exit) {
  const std::shared_ptr<Recording> recording = std::move(recording_);
  if (!at_exit) owner_ = nullptr;
  const bool ours = recording != nullptr && process::current() == recording;
  const int failed = ours ? process::stop(at_exit) : 0;
  // Another thread of the program may be ending the recording. Wait for that thread, because the answer says that the file is
  // complete.
  for (std::uint32_t waited = 0; recording != nullptr && recording->writes() && waited < patience_ms_; ++waited) pause(1);
  if (failed != 0) return failure(process::last_error());
  JsonObject json;
  json.texts("notes", process::notes());
  add_counters(json);
  return json;
}

JsonObject Standby::dump(std::string_view path) const {
  std::string error;
  const Outcome outcome = recording_ != nullptr ? recording_->dump(std::string(path), error) : Outcome::failed;
  if (outcome == Outcome::failed) return failure(error);
  JsonObject json;
  json.raw("written", outcome == Outcome::done ? "true" : "false");
  return json;
}

JsonObject Standby::status() const {
  JsonObject json;
  json.number("pid", static_cast<std::uint64_t>(::getpid()));
  json.number("since", since_);
  json.raw("cuda", cuda_used.load() ? "true" : "false");
  if (const auto current = process::current(); current == nullptr) {
    json.raw("recording", "null");
  } else {
    const bool attached = current == recording_ && owner_ != nullptr;
    JsonObject recording;
    recording.text("by", attached ? "attach" : "program");
    if (attached && owner_->peer != 0) recording.number("pid", static_cast<std::uint64_t>(owner_->peer));
    if (attached) {
      recording.number("since", recording_since_);
      recording.raw("working", first_work().begun() ? "true" : "false");
      const std::uint64_t returned = first_work().returned();
      if (returned != 0) recording.number("worked_ns", now_ns() - returned);
    }
    add_counters(recording);
    json.raw("recording", recording.str());
  }
  return json;
}

// Never destroyed, because its thread runs until the process ends.
std::atomic<Standby*> instance{nullptr};
std::atomic<bool> begun{false};
Options& options = *new Options;  // written once, before the handlers are installed

void begin_here() noexcept {
  std::string error;
  try {
    const std::lock_guard lock(no_fork);
    auto standby = std::make_unique<Standby>(options);
    if (standby->begin(error)) return instance.store(standby.release());
  } catch (const std::exception&) {
    error = "the collector got no memory";
  }
  tell("nobody can attach to this process: ", error);
}

// The child goes on standby at its first NVTX event or CUDA call, because most children call exec() and need no standby.
void after_fork_in_child() {
  const BlockedCancellation whole;
  no_fork.unlock();
  if (Standby* standby = instance.exchange(nullptr)) standby->after_fork_in_child();
  cuda_used.store(false);
  begun.store(false);
  rings::after_fork_in_child();
  nvtx::after_fork_in_child([] {
    if (!begun.exchange(true)) begin_here();
  });
}

}  // namespace

void begin(const Options& defaults) {
  if (begun.exchange(true)) return;
  static std::atomic<bool> installed{false};
  if (!installed.exchange(true)) {
    options = defaults;
    std::atexit(at_exit);
    // Install the handlers of recordings first. In a child, standby's handler then runs last and decides about NVTX.
    process::install_handlers();
    pthread_atfork([] { no_fork.lock(); }, [] { no_fork.unlock(); }, after_fork_in_child);
  }
  begin_here();
}

void at_exit() {
  if (process::ignores_exit()) return;
  const BlockedCancellation whole;
  if (Standby* standby = instance.load()) standby->leave();
}

void note_cuda() { cuda_used.store(true); }

}  // namespace cutrace::standby
