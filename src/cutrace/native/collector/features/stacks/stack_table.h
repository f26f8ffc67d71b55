// The frames and stacks of a recording, without duplicates. Their rows are written to a file before the first row that refers to
// them. Writer thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/capture.h"
#include "core/interning.h"

namespace cutrace {

class StackTable {
 public:
  // Frames and stacks get higher ids than these, so that an id has one meaning in a recording.
  StackTable(std::uint32_t frames_before, std::uint32_t stacks_before)
      : frames_before_(frames_before), stacks_before_(stacks_before) {}

  // The id of a frame.
  std::uint32_t frame(std::string_view file, std::string_view function, std::uint32_t line);
  // The id of a stack; `parent` 0 for none.
  std::uint32_t stack(std::uint32_t parent, std::uint32_t frame);

  // Adds the rows of a stack, its parents and their frames that the current file lacks.
  void write(std::uint32_t stack, Capture& capture);

  std::uint32_t last_frame() const { return frames_before_ + static_cast<std::uint32_t>(frames_.size()); }
  std::uint32_t last_stack() const { return stacks_before_ + static_cast<std::uint32_t>(stacks_.size()); }
  std::size_t memory() const;

 private:
  struct TableFrame {
    const std::string* file;
    const std::string* function;
    std::uint32_t line;
    std::uint32_t written_in = 0;  // the last file that has its row: Capture::references()
  };
  struct TableStack {
    std::uint32_t parent;
    std::uint32_t frame;
    std::uint32_t written_in = 0;
  };
  struct FrameKey {
    const std::string* file;
    const std::string* function;
    std::uint32_t line;

    bool operator==(const FrameKey&) const = default;
  };
  struct HashFrame {
    std::size_t operator()(const FrameKey& key) const {
      const std::uint64_t names = hash_mix(reinterpret_cast<std::uintptr_t>(key.file), reinterpret_cast<std::uintptr_t>(key.function));
      return hash_mix(names, key.line);
    }
  };

  const std::string* name(std::string_view text);
  TableFrame& frame_of(std::uint32_t id) { return frames_[id - frames_before_ - 1]; }
  TableStack& stack_of(std::uint32_t id) { return stacks_[id - stacks_before_ - 1]; }
  void write_frame(std::uint32_t id, Capture& capture);

  std::uint32_t frames_before_;
  std::uint32_t stacks_before_;
  std::unordered_set<std::string, SeededHash, std::equal_to<>> names_;
  std::size_t name_bytes_ = 0;
  std::vector<TableFrame> frames_;
  std::vector<TableStack> stacks_;
  std::unordered_map<FrameKey, std::uint32_t, HashFrame> frame_ids_;
  std::unordered_map<std::uint64_t, std::uint32_t, SeededHash> stack_ids_;  // by parent and frame
  std::vector<std::uint32_t> unwritten_;  // used by write(), kept so that it seldom allocates
};

}  // namespace cutrace
