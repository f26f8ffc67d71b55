#include "module_variables.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace cutrace {
namespace {

// The sections of variables: initially zero, with other initial values, and in constant memory.
constexpr std::array<std::string_view, 3> kSections = {".nv.global", ".nv.global.init", ".nv.constant3"};

}  // namespace

std::optional<ModuleVariable> ModuleVariables::variable_at(std::uint32_t index) const {
  constexpr unsigned char kManaged = 0x04;  // in the st_other of a symbol
  Elf64_Sym symbol;
  if (!elf_.symbol(index, symbol) || ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_size == 0) return std::nullopt;
  const std::uint32_t section = elf_.section_of(index, symbol);
  if (section == ElfFile::kNone) return std::nullopt;
  const Elf64_Shdr header = elf_.section(section);
  const bool has_variables = std::ranges::any_of(kSections, [&](std::string_view name) { return elf_.has_name(header, name); });
  if (!has_variables) return std::nullopt;
  return ModuleVariable{symbol.st_size, (symbol.st_other & kManaged) != 0};
}

}  // namespace cutrace
