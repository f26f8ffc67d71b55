// The static variables of a module, from the symbols of its machine code. The addresses are the driver's secret.
//
// Callbacks about modules use it, while the driver loads them. So it allocates nothing, and takes time by the number of symbols.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cutrace {

struct ModuleVariable {
  std::uint64_t bytes;
  bool managed;
};

class ModuleVariables {
 public:
  // Of a file that cannot be read there are none.
  ModuleVariables(const void* cubin, std::size_t size);

  template <typename Visit>
  void each(Visit&& visit) const {
    for (std::uint64_t index = 0; index < symbol_count_; ++index)
      if (const auto variable = variable_at(index)) visit(*variable);
  }

 private:
  bool read_header();
  void find_symbols();
  std::optional<ModuleVariable> variable_at(std::uint64_t index) const;
  // The section of a symbol, 0 for none.
  std::uint64_t section_of(std::uint64_t index, const Elf64_Sym& symbol) const;
  bool section(std::uint64_t index, Elf64_Shdr& section) const;
  std::string_view name_of(const Elf64_Shdr& section) const;
  bool inside(std::uint64_t offset, std::uint64_t size) const;
  template <typename Value>
  bool get(std::uint64_t offset, Value& value) const;

  std::string_view file_;
  std::uint64_t sections_ = 0;  // where their headers are
  std::uint64_t section_count_ = 0;
  Elf64_Shdr section_names_{};
  Elf64_Shdr symbols_{};
  Elf64_Shdr long_indexes_{};  // of symbols in sections whose index has more than 16 bits
  std::uint64_t symbol_count_ = 0;
};

}  // namespace cutrace
