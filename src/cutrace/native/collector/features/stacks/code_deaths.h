// Detects the end of code objects. A later code object can get the same address, and notes about the address are then wrong.
//
// While stacks are taken, the deallocator of Python's code objects is replaced. The new deallocator searches for the object among
// the objects that captures have read. If it finds the object, the epoch rises, and each thread drops its notes. Python's lock
// orders this: a thread sees the new epoch before it can run code at a freed address. (PyCode_AddWatcher() exists from 3.12 on
// only, and needs Python's lock.)
#pragma once

#include <cstdint>

namespace cutrace::python {

// Starts to watch. `code_type` is PyCode_Type. Raises the epoch, because codes may have died unwatched. No capture may run.
void watch_code_deaths(void* code_type);
// Puts the deallocator of Python back, unless another tool has replaced it since.
void unwatch_code_deaths();

// A capture has read this code object. Its notes are valid until the epoch rises. Any thread; takes no lock.
void note_code(std::uint64_t code);

std::uint32_t code_epoch();
// Makes all threads drop their notes.
void raise_code_epoch();

}  // namespace cutrace::python
