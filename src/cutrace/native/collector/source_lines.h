// Where an instruction of a kernel comes from: the file and the line that the module's line information has.
#pragma once

#include "cupti_library.h"

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace cutrace {

struct SourceLine {
  std::string file;  // empty where the module says nothing
  std::uint32_t line = 0;
};

class SourceLines {
 public:
  // Every line is unknown where this libcupti lacks a function.
  explicit SourceLines(const CuptiLibrary& cupti) : cupti_(cupti) {}
  // Keeps a copy of a module. For callbacks: it calls nothing of CUPTI, which may hold locks then.
  void add(const void* cubin, std::size_t size);
  // Of the instruction `offset` bytes into a function (by its mangled name) of the module with this checksum. Not in callbacks.
  SourceLine find(std::uint64_t crc, const char* function, std::uint64_t offset);

 private:
  using Module = std::vector<char>;
  const Module* module(std::uint64_t crc);

  const CuptiLibrary& cupti_;
  std::mutex mutex_;
  std::deque<Module> added_;  // whose checksums are not known yet
  std::map<std::uint64_t, Module> modules_;
};

}  // namespace cutrace
