// The source file and line of an instruction, from the line information of its module.
#pragma once

#include "cupti_library.h"

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace cutrace {

struct SourceLine {
  std::string file;  // empty when unknown
  std::uint32_t line = 0;
};

class SourceLines {
 public:
  // All lines are unknown if this libcupti lacks a function.
  explicit SourceLines(const CuptiLibrary& cupti) : cupti_(cupti) {}
  // Keeps a copy of a module. Safe in callbacks, where CUPTI may hold locks, because it makes no CUPTI call.
  void add(const void* cubin, std::size_t size);
  // The line of the instruction at `offset` bytes of a function (mangled name) of the module with this checksum. Not safe in
  // callbacks.
  SourceLine find(std::uint64_t crc, const char* function, std::uint64_t offset);

 private:
  using Module = std::vector<char>;
  const Module* module(std::uint64_t crc);

  const CuptiLibrary& cupti_;
  std::mutex mutex_;
  std::deque<Module> added_;  // without a checksum yet
  std::map<std::uint64_t, Module> modules_;
};

}  // namespace cutrace
