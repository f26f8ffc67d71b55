// The kernels of a cubin, which is the ELF file with the machine code of a module.
//
// NVIDIA does not document the format. The fields read here were found in files that CUDA 11.8 to 13.5 made for sm_35 to sm_120,
// and checked against the output of cuobjdump. A cubin comes from the program, so the reader checks each offset, and the size of
// the file bounds its work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace cutrace {

struct CubinCode {
  std::string_view name;  // mangled; its bytes are in the file
  // Of the machine code and constants of the function, and of all functions that it calls. The driver fills in addresses when it
  // loads the module. In their place, the names of their targets are hashed. Never 0.
  std::uint64_t hash = 0;
  std::uint32_t index = 0;          // of its symbol, as CUPTI numbers functions of a module
  std::uint32_t size = 0;           // bytes of machine code, without other functions
  std::uint32_t registers = 0;      // of a thread
  std::uint32_t static_shared = 0;  // bytes of a block
  std::uint32_t local = 0;          // bytes of a thread, including called functions
};

struct Cubin {
  std::uint32_t architecture = 0;  // 90 for sm_90
  std::vector<CubinCode> kernels;
};

// nullopt when the file is not a cubin, or cannot be read as a whole. May throw std::bad_alloc.
std::optional<Cubin> read_cubin(const void* file, std::size_t size);

}  // namespace cutrace
