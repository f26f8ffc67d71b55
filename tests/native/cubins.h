// Cubins for tests: the files of tests/data/cubins, and generated ones.
#pragma once

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

inline std::string cubin_file(const std::string& name) {
  std::string path = CUBINS_PATH "/";
  path += name + ".cubin";
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

// The offset of a section's first byte.
inline std::size_t section_at(const std::string& file, const std::string& name) {
  Elf64_Ehdr header;
  std::memcpy(&header, file.data(), sizeof header);
  const auto section = [&](std::size_t index) {
    Elf64_Shdr row;
    std::memcpy(&row, file.data() + header.e_shoff + index * sizeof row, sizeof row);
    return row;
  };
  const std::size_t names = section(header.e_shstrndx).sh_offset;
  for (std::size_t i = 0; i < header.e_shnum; ++i)
    if (name == file.c_str() + names + section(i).sh_name) return section(i).sh_offset;
  check::failed(__FILE__, __LINE__, "no section is called " + name);
}

// The same module with other machine code in one function.
inline std::string with_other_code(std::string file, const std::string& function) {
  file[section_at(file, ".text." + function) + 16] ^= 1;
  return file;
}

// Writes a cubin with the given kernels, in the form of CUDA 13.
class CubinMaker {
 public:
  CubinMaker() {
    sections_.resize(kFirstCode);
    symbols_.resize(1);
    define(kNames, SHT_STRTAB, ".shstrtab", 0, 0);
    define(kStrings, SHT_STRTAB, ".strtab", 0, 0);
    define(kSymbols, SHT_SYMTAB, ".symtab", kStrings, sizeof(Elf64_Sym));
    define(kAttributes, SHT_LOPROC, ".nv.info", kSymbols, 0);
  }
  void add_kernel(const std::string& name, const std::string& code, std::uint32_t registers, std::uint64_t shared = 0) {
    const auto section = static_cast<std::uint32_t>(sections_.size());
    Section& text = define(section, SHT_PROGBITS, ".text." + name, kSymbols, 0);
    text.header.sh_flags = SHF_ALLOC | SHF_EXECINSTR;
    text.contents = code;
    Section& memory = define(section + 1, SHT_NOBITS, ".nv.shared." + name, 0, 0);
    memory.header.sh_info = section;
    memory.header.sh_size = shared;
    Elf64_Sym symbol{};
    symbol.st_name = string(strings_, name);
    symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    symbol.st_other = 0x10;
    symbol.st_shndx = static_cast<std::uint16_t>(section < SHN_LORESERVE ? section : SHN_XINDEX);
    symbol.st_size = code.size();
    long_indexes_.push_back(section);
    const std::uint32_t value[] = {0x00082f04, static_cast<std::uint32_t>(symbols_.size()), registers};
    append(sections_[kAttributes].contents, value);
    symbols_.push_back(symbol);
  }
  // Relocations of the code of a kernel, by its number.
  void add_relocations(std::uint32_t kernel, const std::vector<Elf64_Rela>& rows) {
    Section& section = define(static_cast<std::uint32_t>(sections_.size()), SHT_RELA, ".rela.text.x", kSymbols, sizeof(Elf64_Rela));
    section.header.sh_info = kFirstCode + 2 * kernel;
    for (const Elf64_Rela& row : rows) append(section.contents, row);
  }
  std::string file() {
    if (sections_.size() >= SHN_LORESERVE) {
      Section& indexes = define(static_cast<std::uint32_t>(sections_.size()), SHT_SYMTAB_SHNDX, ".symtab_shndx", kSymbols, 4);
      indexes.contents.assign(4, '\0');
      for (const std::uint32_t index : long_indexes_) append(indexes.contents, index);
    }
    sections_[kNames].contents = names_;
    sections_[kStrings].contents = strings_;
    for (const Elf64_Sym& symbol : symbols_) append(sections_[kSymbols].contents, symbol);
    Elf64_Ehdr header{};
    const unsigned char ident[] = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, 1, 0x41, 8};
    std::copy(std::begin(ident), std::end(ident), header.e_ident);
    header.e_machine = 190;
    header.e_flags = 0x06005a04;
    header.e_shentsize = sizeof(Elf64_Shdr);
    const bool many = sections_.size() >= SHN_LORESERVE;
    header.e_shnum = static_cast<std::uint16_t>(many ? 0 : sections_.size());
    header.e_shstrndx = kNames;
    if (many) sections_[0].header.sh_size = sections_.size();
    std::string file(sizeof header, '\0');
    for (Section& section : sections_) {
      if (section.header.sh_type == SHT_NULL || section.header.sh_type == SHT_NOBITS) continue;
      section.header.sh_offset = file.size();
      section.header.sh_size = section.contents.size();
      file += section.contents;
    }
    header.e_shoff = file.size();
    for (const Section& section : sections_) append(file, section.header);
    std::memcpy(file.data(), &header, sizeof header);
    return file;
  }

 private:
  enum : std::uint32_t { kNames = 1, kStrings, kSymbols, kAttributes, kFirstCode };
  struct Section {
    Elf64_Shdr header{};
    std::string contents;
  };

  template <typename Value>
  static void append(std::string& to, const Value& value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static std::uint32_t string(std::string& table, const std::string& text) {
    const auto at = static_cast<std::uint32_t>(table.size());
    table.append(text.c_str(), text.size() + 1);
    return at;
  }
  Section& define(std::uint32_t index, std::uint32_t type, const std::string& name, std::uint32_t link, std::uint64_t entry) {
    if (index >= sections_.size()) sections_.resize(index + 1);
    Section& section = sections_[index];
    section.header.sh_type = type;
    section.header.sh_name = string(names_, name);
    section.header.sh_link = link;
    section.header.sh_entsize = entry;
    return section;
  }

  std::string names_ = std::string(1, '\0'), strings_ = std::string(1, '\0');
  std::vector<Section> sections_;
  std::vector<Elf64_Sym> symbols_;
  std::vector<std::uint32_t> long_indexes_;
};
