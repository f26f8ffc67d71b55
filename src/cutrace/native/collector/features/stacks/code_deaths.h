// When a code object dies, another one can take its address. What was noted about the address is then wrong.
//
// So while stacks are taken, the deallocator of Python's code objects is replaced by one that looks for the object among those
// that captures have read. If it was read, the epoch rises, and each thread forgets what it has noted. The lock of Python orders
// this: a thread can only run code at an address that was freed after it has seen the new epoch.
// (PyCode_AddWatcher() exists from 3.12 on only, and needs Python's lock.)
#pragma once

#include <cstdint>

namespace cutrace::python {

// Starts to watch. `code_type` is PyCode_Type. Raises the epoch, because codes may have died unseen. No capture may run.
void watch_code_deaths(void* code_type);
// Puts the deallocator of Python back, unless another tool has replaced it since.
void unwatch_code_deaths();

// A capture has read this code object and may keep what it read while the epoch stays. Any thread; takes no lock.
void note_code(std::uint64_t code);

std::uint32_t code_epoch();
// Lets all threads forget what they have noted.
void raise_code_epoch();

}  // namespace cutrace::python
