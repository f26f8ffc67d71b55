// A strict run.bin reader for tests: all blocks complete, all checksums correct, no reference before its target.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "common/block.h"
#include "cutrace/rows.h"

class CaptureReader {
 public:
  // `torn` allows a file that ends inside a block, as after a kill, and a file that starts with another block than the process
  // block, as on a full disk.
  explicit CaptureReader(const std::string& path, bool torn = false);
  // Defined in the source file, as most functions, so that test programs do not each compile them.
  CaptureReader(CaptureReader&& other) noexcept;
  CaptureReader& operator=(CaptureReader&& other) noexcept;
  ~CaptureReader();

  template <typename Row>
  std::vector<Row> rows() const {
    const std::string& bytes = table(Row::kTable);
    std::vector<Row> out(bytes.size() / sizeof(Row));
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  const std::string& text(std::uint32_t id) const;
  std::uint64_t lost(cutrace::rows::Loss reason) const;
  bool says(const std::string& part) const;  // in any process block

  std::uint32_t first_block = 0, next_block = 0;  // numbers of the first block and of the next block
  std::uint32_t pid = 0;
  std::uint64_t instance = 0;
  std::vector<std::string> processes;
  std::map<std::uint32_t, std::string> strings{{0, ""}};

 private:
  bool torn_;

  void block(const cutrace::BlockHeader& h, const char* payload);
  const std::string& table(std::uint16_t kind) const;

  std::map<std::uint16_t, std::string> tables_;
  std::set<std::uint32_t> launches_{0}, functions_{0}, frames_, stacks_{0};
};
