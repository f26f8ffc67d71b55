#include "elf_file.h"

namespace cutrace {

ElfFile::ElfFile(const void* file, std::size_t size) : file_(static_cast<const char*>(file), file != nullptr ? size : 0) {
  if (read_header()) find_symbols();
}

bool ElfFile::read_header() {
  Elf64_Shdr first;
  if (!get(0, header_) || std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0) return false;
  if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB) return false;
  if (header_.e_shentsize != sizeof first || !get(header_.e_shoff, first)) return false;
  // The first section has the numbers that need more than 16 bits.
  const std::uint64_t count = header_.e_shnum != 0 ? header_.e_shnum : first.sh_size;
  const std::uint32_t names = header_.e_shstrndx != SHN_XINDEX ? header_.e_shstrndx : first.sh_link;
  if (count > file_.size() / sizeof first || names >= count || !inside(header_.e_shoff, count * sizeof first)) return false;
  section_count_ = static_cast<std::uint32_t>(count);
  section_names_ = names;
  return true;
}

void ElfFile::find_symbols() {
  for (std::uint32_t index = 0; index < section_count_; ++index) {
    const Elf64_Shdr found = section(index);
    if (found.sh_type == SHT_SYMTAB_SHNDX) long_indexes_ = found;
    if (found.sh_type != SHT_SYMTAB || found.sh_entsize != sizeof(Elf64_Sym) || found.sh_link >= section_count_) continue;
    if (symbol_names_ != kNone || !is_complete(found)) continue;
    symbols_ = found;
    symbol_count_ = static_cast<std::uint32_t>(found.sh_size / sizeof(Elf64_Sym));
    symbol_names_ = found.sh_link;
  }
}

Elf64_Shdr ElfFile::section(std::uint32_t index) const {
  Elf64_Shdr section{};
  get(header_.e_shoff + std::uint64_t{index} * sizeof section, section);
  return section;
}

std::string_view ElfFile::name_of(const Elf64_Shdr& section) const {
  const std::string_view names = contents(this->section(section_names_));
  return section.sh_name < names.size() ? names.substr(section.sh_name) : std::string_view();
}

bool ElfFile::has_name(const Elf64_Shdr& section, std::string_view name) const {
  const std::string_view names = name_of(section);
  return names.starts_with(name) && names.substr(name.size()).starts_with('\0');
}

bool ElfFile::is_complete(const Elf64_Shdr& section) const {
  const bool has_bytes = section.sh_type != SHT_NULL && section.sh_type != SHT_NOBITS;
  return !has_bytes || inside(section.sh_offset, section.sh_size);
}

std::string_view ElfFile::contents(const Elf64_Shdr& section) const {
  const bool has_bytes = section.sh_type != SHT_NULL && section.sh_type != SHT_NOBITS;
  return has_bytes && inside(section.sh_offset, section.sh_size) ? file_.substr(section.sh_offset, section.sh_size) : std::string_view();
}

bool ElfFile::symbol(std::uint32_t index, Elf64_Sym& symbol) const {
  return index < symbol_count_ && get(symbols_.sh_offset + std::uint64_t{index} * sizeof symbol, symbol);
}

std::uint32_t ElfFile::section_of(std::uint32_t index, const Elf64_Sym& symbol) const {
  std::uint32_t section = symbol.st_shndx;
  if (section == SHN_XINDEX) {
    const std::uint64_t offset = std::uint64_t{index} * sizeof section;
    if (offset >= long_indexes_.sh_size || !get(long_indexes_.sh_offset + offset, section)) return kNone;
  } else if (section >= SHN_LORESERVE) {
    return kNone;
  }
  return section != SHN_UNDEF && section < section_count_ ? section : kNone;
}

}  // namespace cutrace
