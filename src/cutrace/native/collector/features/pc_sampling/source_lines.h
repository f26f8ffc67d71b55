// The source file and line of an instruction, from the line information of its module.
#pragma once

#include "cuda/cupti_library.h"

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
  static constexpr std::size_t kRoom = std::size_t{256} << 20;
  // All lines are unknown if this libcupti lacks a function. `room`: bytes of modules that it keeps.
  explicit SourceLines(const CuptiLibrary& cupti, std::size_t room = kRoom) : cupti_(cupti), room_(room) {}
  // Keeps a copy of a module. False for lack of room: its lines then stay unknown. Safe in callbacks, where CUPTI may hold locks,
  // because it makes no CUPTI call.
  bool add(const void* cubin, std::size_t size);
  // Makes room: drops copies of modules that were loaded again. Not safe in callbacks.
  void drop_repeated();
  // The line of the instruction at `offset` bytes of a function (mangled name) of the module with this checksum. Not safe in
  // callbacks.
  SourceLine find(std::uint64_t crc, const char* function, std::uint64_t offset);

 private:
  using Module = std::vector<char>;
  const Module* module(std::uint64_t crc);
  void sort_added();  // under mutex_

  const CuptiLibrary& cupti_;
  std::mutex mutex_;
  std::size_t room_;
  std::deque<Module> added_;  // without a checksum yet
  std::map<std::uint64_t, Module> modules_;
};

}  // namespace cutrace
