#include "module_variables.h"

#include <string_view>

namespace cutrace {

std::optional<ModuleVariable> ModuleVariables::variable_at(std::uint32_t index) const {
  constexpr unsigned char kManaged = 0x04;  // in the st_other of a symbol
  Elf64_Sym symbol;
  if (!elf_.symbol(index, symbol) || ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_size == 0) return std::nullopt;
  const std::uint32_t section = elf_.section_of(index, symbol);
  if (section == ElfFile::kNone) return std::nullopt;
  const std::string_view name = elf_.name_of(elf_.section(section));
  const bool is_global = name.starts_with(std::string_view(".nv.global\0", 11)) || name.starts_with(std::string_view(".nv.global.init\0", 16));
  if (!is_global) return std::nullopt;
  return ModuleVariable{symbol.st_size, (symbol.st_other & kManaged) != 0};
}

}  // namespace cutrace
