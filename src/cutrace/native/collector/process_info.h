// What a capture says about its process: the JSON of process blocks, and the names of threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture.h"
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
  static std::string quoted(std::string_view value);

 private:
  std::vector<std::pair<std::string, std::string>> members_;
};

// What the first process block says: identity, options, layouts.
JsonObject process_identity(const Options& options, std::uint64_t started);

// Writes a row for each thread whose name is new or has changed. `known` remembers hashes of names.
void add_thread_names(Capture& capture, std::unordered_map<std::uint32_t, std::uint64_t>& known);

// Tools found in this process that are known to use CUPTI: "torch.profiler (libtorch_cpu.so)", ...
std::vector<std::string> likely_cupti_holders();

// The release of NVIDIA's kernel driver ("580.95.05"), "" where it does not say; and how it is found in what it says.
std::string driver_release();
std::string release_of(std::string_view version);

// A number that tells this recording from any other.
std::uint64_t random_instance();

}  // namespace cutrace
