// The parts of fake_driver.cpp that other files of the fake driver use.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>

inline constexpr std::uint64_t kFakeMemory = std::uint64_t{80} << 30;  // bytes of each GPU

namespace fake {

// An API call of the program: runs `body(correlation)`, which returns the call's status, and records the call.
int api_call(const char* call, const std::function<int(std::uint32_t)>& body);
// Reports a driver call to CUPTI's subscriber, at its start (`result` null) or at its end.
void tell(const char* call, std::uint32_t correlation, const void* parameters, const int* result);
void tell_of_context(CUcontext context, bool made);
bool is_enabled(int kind);
// A call has waited: pools give memory back.
void after_wait(bool of_context);
// The actions of the runtime at a program's first call.
int initialise_runtime();
CUcontext context();  // the current one

}  // namespace fake
