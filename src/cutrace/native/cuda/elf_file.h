// The sections and symbols of an ELF file in memory, such as a module's machine code.
//
// The file comes from the program, so each offset is checked. The class allocates no memory, because callbacks use it while the
// driver loads modules.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace cutrace {

class ElfFile {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  // An unreadable file has no sections and no symbols.
  ElfFile(const void* file, std::size_t size);

  const Elf64_Ehdr& header() const { return header_; }
  std::uint32_t section_count() const { return section_count_; }
  // `index` must be less than section_count().
  Elf64_Shdr section(std::uint32_t index) const;
  // From the section's name to the end of all names.
  std::string_view name_of(const Elf64_Shdr& section) const;
  bool has_name(const Elf64_Shdr& section, std::string_view name) const;
  std::uint32_t section_names() const { return section_names_; }
  // The bytes of a section. Empty when the file has no bytes of it.
  std::string_view contents(const Elf64_Shdr& section) const;
  // False when a part of the section is outside the file.
  bool is_complete(const Elf64_Shdr& section) const;

  std::uint32_t symbol_count() const { return symbol_count_; }
  // The section with the names of symbols, kNone when there is none.
  std::uint32_t symbol_names() const { return symbol_names_; }
  bool symbol(std::uint32_t index, Elf64_Sym& symbol) const;
  // The section of a symbol, kNone for none.
  std::uint32_t section_of(std::uint32_t index, const Elf64_Sym& symbol) const;

  // False when the value is outside the file.
  template <typename Value>
  bool get(std::uint64_t offset, Value& value) const {
    if (!inside(offset, sizeof value)) return false;
    std::memcpy(&value, file_.data() + offset, sizeof value);
    return true;
  }

 private:
  bool read_header();
  void find_symbols();
  bool inside(std::uint64_t offset, std::uint64_t size) const { return offset <= file_.size() && size <= file_.size() - offset; }

  std::string_view file_;
  Elf64_Ehdr header_{};
  std::uint32_t section_count_ = 0;
  std::uint32_t section_names_ = kNone;
  Elf64_Shdr symbols_{};
  Elf64_Shdr long_indexes_{};  // section indices of symbols with more than 16 bits
  std::uint32_t symbol_count_ = 0;
  std::uint32_t symbol_names_ = kNone;
};

}  // namespace cutrace
