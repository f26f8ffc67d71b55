// What a capture says about its process: the JSON of process blocks, notes, and the names of threads.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture.h"
#include "driver.h"
#include "options.h"

namespace cutrace {

// One flat JSON object. A key that is given again has its latest value.
class JsonObject {
 public:
  void text(std::string_view key, std::string_view value);
  void number(std::string_view key, std::uint64_t value);
  void raw(std::string_view key, std::string_view json);
  void texts(std::string_view key, const std::vector<std::string>& values);
  void merge(const JsonObject& other);
  std::string str() const;
  bool empty() const { return members_.empty(); }

 private:
  std::vector<std::pair<std::string, std::string>> members_;
};

// What the first process block says: identity, options, layouts.
JsonObject process_identity(const Options& options, std::uint64_t started);

// What later process blocks say: sentences about what is missing, facts found on the way. Any thread adds; the writer takes
// what is new and writes it. Without memory for a sentence, it leaves it out.
class Notes {
 public:
  void add(std::string_view sentence) noexcept;  // on stderr too
  void add_quietly(std::string_view sentence) noexcept { put({}, sentence); }
  // A sentence that begins with a number, in place of the one with an earlier number.
  void count(std::uint64_t number, std::string_view rest) { put(std::to_string(number), rest); }
  // Members for the next process block.
  void set(const JsonObject& members) {
    const std::lock_guard lock(mutex_);
    pending_.merge(members);
  }
  // What the driver says of its devices.
  void set_devices(std::vector<DeviceFacts> devices) {
    const std::lock_guard lock(mutex_);
    devices_ = std::move(devices);
  }
  std::vector<DeviceFacts> devices() const {
    const std::lock_guard lock(mutex_);
    return devices_;
  }
  std::vector<std::string> sentences() const {
    const std::lock_guard lock(mutex_);
    return sentences_;
  }
  // The same, for the last time; needs no memory.
  std::vector<std::string> take_sentences() {
    const std::lock_guard lock(mutex_);
    return std::move(sentences_);
  }
  // What has been added since the last call.
  JsonObject take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(pending_, {});
  }

 private:
  void put(std::string number, std::string_view rest) noexcept;

  mutable std::mutex mutex_;
  std::vector<std::string> sentences_;
  JsonObject pending_;
  std::vector<DeviceFacts> devices_;
};

// Names of the threads that records come from. One recording has one, for its writer.
class ThreadNames {
 public:
  explicit ThreadNames(Capture& capture);

  // The calling thread keeps its name for a writer that comes too late to ask the system. Cheap but for the first time in a
  // recording, when it takes two system calls and 32 bytes.
  static void note_this_thread() noexcept;

  // Writer thread: a record of this thread has come. At the first one the name is read and written.
  void seen(std::uint32_t thread) {
    std::uint32_t& latest = latest_[thread % latest_.size()];
    if (latest != thread) {
      latest = thread;
      meet(thread);
    }
  }
  // Writer thread, now and then: writes names that have changed.
  void refresh();

 private:
  void meet(std::uint32_t thread);
  void take_notes();
  void write(std::uint32_t thread, std::string& known, std::string_view name);

  Capture& capture_;
  std::array<std::uint32_t, 64> latest_{};                // by the low bits of the id
  std::unordered_map<std::uint32_t, std::string> names_;  // as written; of threads that live, as far as is known
  std::unordered_map<std::uint32_t, std::string> notes_;  // of threads that may be gone
};

// Tools found in this process that are known to use CUPTI: "torch.profiler (libtorch_cpu.so)", ...
std::vector<std::string> likely_cupti_holders();

// The release of NVIDIA's kernel driver ("580.95.05"), "" where it does not say; and how it is found in what it says.
std::string driver_release();
std::string release_of(std::string_view version);

// A number that tells this recording from any other.
std::uint64_t random_instance();

}  // namespace cutrace
