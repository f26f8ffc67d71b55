// Information about the process in its capture: the JSON of process blocks, notes, and the names of threads.
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
#include "cuda/driver.h"
#include "options.h"

namespace cutrace {

struct ThreadNote;

// One flat JSON object. A repeated key keeps its position and gets the new value.
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

// The first process block: identity, options, layouts.
JsonObject process_identity(const Options& options, std::uint64_t started);

// Members of later process blocks: sentences about missing data, and properties that become known later. Any thread adds members,
// and the writer takes and writes the new ones. A sentence is left out when memory is short.
class Notes {
 public:
  void add(std::string_view sentence) noexcept;  // also prints it to stderr
  void add_quietly(std::string_view sentence) noexcept { put({}, sentence); }
  // Adds the sentence `number` + `rest`, and removes an earlier sentence with the same rest.
  void count(std::uint64_t number, std::string_view rest) { put(std::to_string(number), rest); }
  // Adds members to the next process block.
  void set(const JsonObject& members) {
    const std::lock_guard lock(mutex_);
    pending_.merge(members);
  }
  // Properties of the devices, from the driver.
  void set_devices(std::vector<DeviceInfo> devices) {
    const std::lock_guard lock(mutex_);
    devices_ = std::move(devices);
  }
  std::vector<DeviceInfo> devices() const {
    const std::lock_guard lock(mutex_);
    return devices_;
  }
  std::vector<std::string> sentences() const {
    const std::lock_guard lock(mutex_);
    return sentences_;
  }
  // Removes and returns the sentences; needs no memory.
  std::vector<std::string> take_sentences() {
    const std::lock_guard lock(mutex_);
    return std::move(sentences_);
  }
  // Removes and returns the members added since the last call.
  JsonObject take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(pending_, {});
  }

 private:
  void put(std::string number, std::string_view rest) noexcept;

  mutable std::mutex mutex_;
  std::vector<std::string> sentences_;
  JsonObject pending_;
  std::vector<DeviceInfo> devices_;
};

// Names of the threads in records. Each recording has one object, used by its writer.
class ThreadNames {
 public:
  explicit ThreadNames(Capture& capture);

  // Notes the calling thread's name, because the thread may end before the writer asks the system. The first call of a thread in
  // a recording takes two system calls; further calls are cheap. Allocates a note if `own` is null.
  static void note_this_thread(ThreadNote* own = nullptr) noexcept;
  // Writer thread: reads the notes. Called before a ring, with its note, gets another thread.
  void take_notes();

  // Writer thread: call it for each record of a thread. Writes the thread's name at the first record.
  void seen(std::uint32_t thread) {
    std::uint32_t& latest = latest_[thread % latest_.size()];
    if (latest != thread) {
      latest = thread;
      add(thread);
    }
  }
  // Writer thread, periodically: writes names that have changed.
  void refresh();

 private:
  void add(std::uint32_t thread);
  void write(std::uint32_t thread, std::string& known, std::string_view name);

  Capture& capture_;
  std::array<std::uint32_t, 64> latest_{};                // by the low bits of the id
  std::unordered_map<std::uint32_t, std::string> names_;  // as written, of running threads
  std::unordered_map<std::uint32_t, std::string> notes_;  // of threads that may have ended
};

// Tools in this process that are known to use CUPTI: "torch.profiler", ...
std::vector<std::string> likely_cupti_holders();

// driver_release(): the release of NVIDIA's kernel driver ("580.95.05"), "" when unknown. release_of(): the release in the
// driver's version string.
std::string driver_release();
std::string release_of(std::string_view version);

// A random number that identifies a recording.
std::uint64_t random_instance();

}  // namespace cutrace
