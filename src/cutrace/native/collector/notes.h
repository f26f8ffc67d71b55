// What the process blocks of a recording say besides its identity: sentences about what is missing, facts found on the way.
// Any thread adds; the writer takes what is new and writes it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver.h"
#include "process_info.h"

namespace cutrace {

class Notes {
 public:
  // A sentence, said on stderr too.
  void add(const std::string& sentence) {
    std::fprintf(stderr, "cutrace: %s\n", sentence.c_str());
    add_quietly(sentence);
  }
  void add_quietly(const std::string& sentence) {
    const std::lock_guard lock(mutex_);
    sentences_.push_back(sentence);
    pending_.texts("notes", sentences_);
  }
  // A sentence that begins with a number, in place of the one with an earlier number.
  void count(std::uint64_t number, std::string_view rest) {
    const std::lock_guard lock(mutex_);
    std::erase_if(sentences_, [&](const std::string& sentence) { return sentence.ends_with(rest); });
    sentences_.push_back(std::to_string(number) + std::string(rest));
    pending_.texts("notes", sentences_);
  }
  // set(json) puts members into the next process block.
  template <typename Set>
  void members(Set&& set) {
    const std::lock_guard lock(mutex_);
    set(pending_);
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
  mutable std::mutex mutex_;
  std::vector<std::string> sentences_;
  JsonObject pending_;
  std::vector<DeviceFacts> devices_;
};

}  // namespace cutrace
