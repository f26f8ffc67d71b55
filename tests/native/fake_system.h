// Controls of the fake system (fake_system.cpp) and its memory (fake_memory.cpp), for programs that are linked with them.
// Other programs preload libfaults.so (LD_PRELOAD).
#pragma once

#include <cstdint>

extern "C" {
void fault_writes(int error, std::int64_t before, std::int64_t count);
void fault_short_writes(std::uint64_t bytes);
void fault_interrupted_writes(std::int64_t count);
void fault_slow_writes(std::uint64_t bytes_per_second);
void fault_truncates(int error);
void fault_closes(int error);
void fault_copies(int error, unsigned milliseconds);
void fault_hold_copies(bool on);
std::uint64_t fault_copies_begun();
void fault_nameless_files(int error);
std::uint64_t fault_count();

// After `before` allocations by the collector, the next `count` allocations fail. `own_threads`: counts only allocations of the
// collector's threads.
void fault_allocations(std::int64_t before, std::int64_t count, bool own_threads);
std::uint64_t fault_allocations_failed();
}
