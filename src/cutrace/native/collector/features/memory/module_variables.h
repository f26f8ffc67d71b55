// The static variables of a module, from the symbols of its machine code. Only the driver knows their addresses.
//
// Callbacks about modules use it, while the driver loads them. So it allocates nothing; its time depends on the number of symbols.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cuda/elf_file.h"

namespace cutrace {

struct ModuleVariable {
  std::uint64_t bytes;
  bool managed;
};

class ModuleVariables {
 public:
  // A file that cannot be read has no variables.
  ModuleVariables(const void* cubin, std::size_t size) : elf_(cubin, size) {}

  template <typename Visit>
  void each(Visit&& visit) const {
    for (std::uint32_t index = 0; index < elf_.symbol_count(); ++index)
      if (const auto variable = variable_at(index)) visit(*variable);
  }

 private:
  std::optional<ModuleVariable> variable_at(std::uint32_t index) const;

  ElfFile elf_;
};

}  // namespace cutrace
