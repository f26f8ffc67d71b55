// NVTX without any NVTX tool: the callbacks that the header-only NVTX v3 library of a program calls.
#pragma once

#include <cstdint>

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

namespace cutrace::nvtx {

// Ids that CUPTI gives to the program's objects; each may be null and returns 0 when it cannot tell.
using Resolve = std::uint32_t (*)(void* object);
struct Resolver {
  Resolve stream = nullptr;
  Resolve context = nullptr;
};
void set_resolver(Resolver resolver);

// Fills the callback tables that NVTX offers. False when it offers none.
bool install(NvtxGetExportTableFunc_t get_export_table);

}  // namespace cutrace::nvtx
