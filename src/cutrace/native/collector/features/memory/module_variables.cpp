#include "module_variables.h"

#include <cstring>

namespace cutrace {
namespace {

constexpr unsigned char kManaged = 0x04;  // in the st_other of a symbol

}  // namespace

ModuleVariables::ModuleVariables(const void* cubin, std::size_t size) : file_(static_cast<const char*>(cubin), cubin != nullptr ? size : 0) {
  if (read_header()) find_symbols();
}

bool ModuleVariables::inside(std::uint64_t offset, std::uint64_t size) const {
  return offset <= file_.size() && size <= file_.size() - offset;
}

template <typename Value>
bool ModuleVariables::get(std::uint64_t offset, Value& value) const {
  if (!inside(offset, sizeof value)) return false;
  std::memcpy(&value, file_.data() + offset, sizeof value);
  return true;
}

bool ModuleVariables::section(std::uint64_t index, Elf64_Shdr& section) const {
  return index < section_count_ && get(sections_ + index * sizeof section, section);
}

bool ModuleVariables::read_header() {
  Elf64_Ehdr header;
  Elf64_Shdr first;
  if (!get(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return false;
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof first || !get(header.e_shoff, first)) return false;
  // Numbers that need more than 16 bits are in the first section.
  sections_ = header.e_shoff;
  section_count_ = header.e_shnum != 0 ? header.e_shnum : first.sh_size;
  if (section_count_ > file_.size() / sizeof first) return false;
  return section(header.e_shstrndx != SHN_XINDEX ? header.e_shstrndx : first.sh_link, section_names_);
}

void ModuleVariables::find_symbols() {
  Elf64_Shdr found;
  for (std::uint64_t index = 0; section(index, found); ++index) {
    if (found.sh_type == SHT_SYMTAB && found.sh_entsize == sizeof(Elf64_Sym)) symbols_ = found;
    if (found.sh_type == SHT_SYMTAB_SHNDX) long_indexes_ = found;
  }
  if (inside(symbols_.sh_offset, symbols_.sh_size)) symbol_count_ = symbols_.sh_size / sizeof(Elf64_Sym);
}

std::uint64_t ModuleVariables::section_of(std::uint64_t index, const Elf64_Sym& symbol) const {
  if (symbol.st_shndx < SHN_LORESERVE) return symbol.st_shndx;
  std::uint32_t long_index = 0;
  const std::uint64_t offset = index * sizeof long_index;
  const bool has_one = symbol.st_shndx == SHN_XINDEX && offset < long_indexes_.sh_size;
  return has_one && get(long_indexes_.sh_offset + offset, long_index) ? long_index : 0;
}

std::string_view ModuleVariables::name_of(const Elf64_Shdr& section) const {
  const std::uint64_t offset = section_names_.sh_offset + section.sh_name;
  if (section.sh_name >= section_names_.sh_size || !inside(offset, 1)) return {};
  const std::string_view rest = file_.substr(offset, 64);
  return rest.substr(0, strnlen(rest.data(), rest.size()));
}

std::optional<ModuleVariable> ModuleVariables::variable_at(std::uint64_t index) const {
  Elf64_Sym symbol;
  Elf64_Shdr home;
  if (!get(symbols_.sh_offset + index * sizeof symbol, symbol)) return std::nullopt;
  if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_size == 0) return std::nullopt;
  const std::uint64_t of_section = section_of(index, symbol);
  if (of_section == SHN_UNDEF || !section(of_section, home)) return std::nullopt;
  const std::string_view name = name_of(home);
  if (name != ".nv.global" && name != ".nv.global.init") return std::nullopt;
  return ModuleVariable{symbol.st_size, (symbol.st_other & kManaged) != 0};
}

}  // namespace cutrace
