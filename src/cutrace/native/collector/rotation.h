// Which files of a recording that keeps only its newest rows are kept: each time the file is full or old enough the
// recording goes on in a new one, and the oldest are deleted. Writer thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capture.h"
#include "options.h"

namespace cutrace {

struct Segment {
  std::string path;
  std::uint64_t end = 0;  // when the recording left it
  std::uint64_t bytes = 0;
  Capture::Contents contents;
};

class Rotation {
 public:
  explicit Rotation(const Options& options)
      : window_(options.last_ms * 1'000'000), most_bytes_(options.max_size) {}

  // Whether the file that is being written has to be left.
  bool full(std::uint64_t bytes) const { return most_bytes_ != 0 && bytes >= most_bytes_ / kParts; }
  bool old(std::uint64_t began, std::uint64_t now) const { return window_ != 0 && now - began >= window_ / kParts; }

  // Where the next one goes: 12-ab.bin becomes 12-ab-000001.bin, which sorts before it.
  std::string next_path(std::string_view file) {
    const std::string_view ending = file.ends_with(".bin") ? ".bin" : "";
    char number[16];
    std::snprintf(number, sizeof number, "-%06u", ++number_);
    return std::string(file.substr(0, file.size() - ending.size())) + number + std::string(ending);
  }
  void add(Segment segment) {
    bytes_ += segment.bytes;
    kept_.push_back(std::move(segment));
  }

  // Takes out those that are no longer wanted: older than the window, or more than there is room for beside the file that
  // is being written.
  std::vector<Segment> take_oldest(std::uint64_t now) {
    std::vector<Segment> gone;
    const auto too_old = [&](const Segment& s) { return window_ != 0 && s.end + window_ < now; };
    const auto too_much = [&] { return most_bytes_ != 0 && bytes_ > most_bytes_ - most_bytes_ / kParts; };
    while (!kept_.empty() && (too_old(kept_.front()) || too_much())) {
      bytes_ -= kept_.front().bytes;
      gone.push_back(std::move(kept_.front()));
      kept_.pop_front();
    }
    return gone;
  }

  const std::deque<Segment>& kept() const { return kept_; }

 private:
  // So much more than was asked for may be kept, or less of the room be used.
  static constexpr std::uint64_t kParts = 8;

  const std::uint64_t window_;
  const std::uint64_t most_bytes_;
  std::deque<Segment> kept_;
  std::uint64_t bytes_ = 0;
  unsigned number_ = 0;
};

}  // namespace cutrace
