#include "cubin.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <tuple>
#include <utility>

#include "cuda/elf_file.h"
#include "stable_hash.h"

namespace cutrace {
namespace {

constexpr Elf64_Half kMachine = 190;      // EM_CUDA
constexpr unsigned char kEntry = 0x10;    // in the st_other of a kernel's symbol
constexpr unsigned char kNewVersion = 8;  // the ABI version from which e_flags has the architecture in its second byte
constexpr std::size_t kLongestName = 32 << 10;

// From sm_90 on, sections of shared memory include this much for the driver. Launches do not count it as static.
constexpr std::uint32_t kReservesShared = 90;
constexpr std::uint64_t kReservedShared = 1024;

// Attributes of functions in the section .nv.info: a format, a number, the size of a value, and the value. The value of the
// attributes below is a symbol and a number.
enum class Attribute : std::uint8_t { frame_size = 0x11, min_stack_size = 0x12, registers = 0x2f };
constexpr std::uint8_t kSizedValue = 4;    // the other formats have a value of two bytes in place of the size
constexpr std::uint8_t kLastFormat = 4;

constexpr std::uint32_t kNone = ElfFile::kNone;

class CubinReader {
 public:
  CubinReader(const void* file, std::size_t size)
      : elf_(file, size), work_left_(8 * std::uint64_t{size} + (1 << 20)) {}

  bool read(Cubin& cubin);

 private:
  // A section with machine code.
  struct CubinFunction {
    std::uint32_t section = 0;
    std::uint64_t static_shared = 0;
    std::uint64_t hash = 0;  // without called functions; 0: not yet known
  };
  struct CubinKernel {
    std::uint32_t symbol = 0;
    std::uint32_t function = 0;
    std::uint32_t registers = 0;
    std::uint32_t frame = 0;
    std::uint32_t stack = 0;
  };
  // A section that belongs to a function: its code, constants, or relocations of these.
  struct CodeSection {
    std::uint32_t function;
    std::uint32_t section;
    auto operator<=>(const CodeSection&) const = default;
  };
  struct CalledFunction {
    std::uint32_t caller, callee;
    auto operator<=>(const CalledFunction&) const = default;
  };
  struct Relocation {
    std::uint64_t offset;
    std::uint32_t type, symbol;
    std::uint64_t addend;
  };

  bool spend(std::uint64_t work);

  bool read_header(Cubin& cubin);
  bool read_symbols();
  bool read_parts();
  bool read_attributes(const Elf64_Shdr& section);
  bool read_call_graph(const Elf64_Shdr& section);
  bool read_calls();

  bool name_starts(const Elf64_Shdr& section, std::string_view start) const;
  std::optional<std::string_view> string(std::uint32_t table, std::uint32_t offset);
  std::uint32_t function_of(std::uint32_t symbol_index) const;
  static bool relocates(const Elf64_Shdr& section) { return section.sh_type == SHT_RELA || section.sh_type == SHT_REL; }
  template <typename Visit>
  bool each_relocation(const Elf64_Shdr& section, Visit&& visit);
  template <typename Row>
  static std::span<const Row> rows_of(const std::vector<Row>& sorted, std::uint32_t function);

  bool hash_relocations(std::uint32_t function, std::uint32_t of_section, StableHash& hash);
  bool hash_target(std::uint32_t function, std::uint32_t symbol_index, StableHash& hash);
  bool hash_function(std::uint32_t function);
  bool hash_kernel(std::uint32_t function, std::uint64_t& hash);

  ElfFile elf_;
  std::uint64_t work_left_;
  std::uint32_t architecture_ = 0;
  std::vector<std::uint32_t> function_of_section_;
  std::vector<std::uint32_t> kernel_of_symbol_;
  std::vector<CubinFunction> functions_;
  std::vector<CubinKernel> kernels_;
  std::vector<CodeSection> parts_;
  std::vector<CalledFunction> calls_;
  std::vector<std::uint32_t> seen_;    // for each entry of functions_: the last kernel that reached it
};

bool CubinReader::spend(std::uint64_t work) {
  const bool enough = work <= work_left_;
  work_left_ = enough ? work_left_ - work : 0;
  return enough;
}

bool CubinReader::read_header(Cubin& cubin) {
  const Elf64_Ehdr& header = elf_.header();
  if (elf_.section_count() == 0 || header.e_machine != kMachine) return false;
  const bool is_new = header.e_ident[EI_ABIVERSION] >= kNewVersion;
  architecture_ = (is_new ? header.e_flags >> 8 : header.e_flags) & 0xFF;
  cubin.architecture = architecture_;
  for (std::uint32_t i = 0; i < elf_.section_count(); ++i)
    if (!elf_.is_complete(elf_.section(i))) return false;
  return true;
}

bool CubinReader::read_symbols() {
  if (elf_.symbol_names() == kNone) return false;
  function_of_section_.assign(elf_.section_count(), kNone);
  kernel_of_symbol_.assign(elf_.symbol_count(), kNone);
  for (std::uint32_t i = 0; i < elf_.symbol_count(); ++i) {
    Elf64_Sym symbol;
    if (!elf_.symbol(i, symbol)) return false;
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
    const std::uint32_t section = elf_.section_of(i, symbol);
    if (section == kNone || !(elf_.section(section).sh_flags & SHF_EXECINSTR)) continue;
    std::uint32_t& function = function_of_section_[section];
    if (function == kNone) {
      function = static_cast<std::uint32_t>(functions_.size());
      functions_.push_back({section});
    }
    if (!(symbol.st_other & kEntry)) continue;
    kernel_of_symbol_[i] = static_cast<std::uint32_t>(kernels_.size());
    kernels_.push_back({i, function});
  }
  return true;
}

// The function that owns the section of a symbol.
std::uint32_t CubinReader::function_of(std::uint32_t symbol_index) const {
  Elf64_Sym symbol;
  if (!elf_.symbol(symbol_index, symbol)) return kNone;
  const std::uint32_t section = elf_.section_of(symbol_index, symbol);
  return section != kNone ? function_of_section_[section] : kNone;
}

bool CubinReader::name_starts(const Elf64_Shdr& section, std::string_view start) const {
  return elf_.name_of(section).starts_with(start);
}

std::optional<std::string_view> CubinReader::string(std::uint32_t table, std::uint32_t offset) {
  const std::string_view strings = elf_.contents(elf_.section(table));
  if (offset >= strings.size()) return std::nullopt;
  const std::string_view rest = strings.substr(offset, kLongestName);
  const std::size_t size = strnlen(rest.data(), rest.size());
  if (size == rest.size() || !spend(size)) return std::nullopt;
  return rest.substr(0, size);
}

// Sections of a function have the index of its code in sh_info.
bool CubinReader::read_parts() {
  std::vector<std::uint32_t> owner(elf_.section_count(), kNone);  // of code and constants
  for (std::uint32_t i = 0; i < functions_.size(); ++i) {
    owner[functions_[i].section] = i;
    parts_.push_back({i, functions_[i].section});
  }
  for (std::uint32_t i = 0; i < elf_.section_count(); ++i) {
    const Elf64_Shdr section = elf_.section(i);
    if (elf_.has_name(section, ".nv.info") && !read_attributes(section)) return false;
    if (elf_.has_name(section, ".nv.callgraph") && !read_call_graph(section)) return false;
    if (section.sh_info >= elf_.section_count()) continue;
    const std::uint32_t function = function_of_section_[section.sh_info];
    if (function == kNone) continue;
    if (name_starts(section, ".nv.shared.")) functions_[function].static_shared = section.sh_size;
    // Bank 0 has the parameters, which the launch sets.
    if (!name_starts(section, ".nv.constant") || name_starts(section, ".nv.constant0.")) continue;
    owner[i] = function;
    parts_.push_back({function, i});
  }
  for (std::uint32_t i = 0; i < elf_.section_count(); ++i) {
    const Elf64_Shdr section = elf_.section(i);
    if (!relocates(section) || section.sh_info >= elf_.section_count()) continue;
    if (owner[section.sh_info] != kNone) parts_.push_back({owner[section.sh_info], i});
  }
  std::ranges::sort(parts_);
  return true;
}

bool CubinReader::read_attributes(const Elf64_Shdr& section) {
  const std::uint64_t end = section.sh_offset + section.sh_size;
  for (std::uint64_t at = section.sh_offset; at + 4 <= end;) {
    struct {
      std::uint8_t format, number;
      std::uint16_t size;
    } head{};
    struct {
      std::uint32_t symbol, number;
    } value{};
    if (!elf_.get(at, head) || head.format > kLastFormat) return false;
    at += sizeof head;
    if (head.format != kSizedValue) continue;
    const std::uint64_t value_at = at;
    at += head.size;
    if (at > end) return false;
    if (head.size != sizeof value || !elf_.get(value_at, value) || value.symbol >= elf_.symbol_count()) continue;
    if (kernel_of_symbol_[value.symbol] == kNone) continue;
    CubinKernel& kernel = kernels_[kernel_of_symbol_[value.symbol]];
    switch (static_cast<Attribute>(head.number)) {
      case Attribute::registers: kernel.registers = value.number; break;
      case Attribute::frame_size: kernel.frame = value.number; break;
      case Attribute::min_stack_size: kernel.stack = value.number; break;
    }
  }
  return true;
}

// Pairs of symbols, the caller's and the callee's.
bool CubinReader::read_call_graph(const Elf64_Shdr& section) {
  std::array<std::uint32_t, 2> pair{};
  for (std::uint64_t at = 0; at + sizeof pair <= section.sh_size; at += sizeof pair) {
    if (!elf_.get(section.sh_offset + at, pair)) return false;
    const std::uint32_t caller = function_of(pair[0]), callee = function_of(pair[1]);
    if (caller != kNone && callee != kNone && caller != callee) calls_.push_back({caller, callee});
  }
  return true;
}

template <typename Visit>
bool CubinReader::each_relocation(const Elf64_Shdr& section, Visit&& visit) {
  const bool has_addend = section.sh_type == SHT_RELA;
  const std::uint64_t size = has_addend ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
  if (!spend(section.sh_size)) return false;
  for (std::uint64_t at = 0; at + size <= section.sh_size; at += size) {
    Elf64_Rel row;
    std::uint64_t addend = 0;
    if (!elf_.get(section.sh_offset + at, row)) return false;
    if (has_addend && !elf_.get(section.sh_offset + at + sizeof row, addend)) return false;
    const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(row.r_info));
    visit(Relocation{row.r_offset, type, static_cast<std::uint32_t>(ELF64_R_SYM(row.r_info)), addend});
  }
  return true;
}

// Calls that the driver links, and functions with a taken address.
bool CubinReader::read_calls() {
  for (const CodeSection& part : parts_) {
    if (!relocates(elf_.section(part.section))) continue;
    const bool read = each_relocation(elf_.section(part.section), [&](const Relocation& relocation) {
      const std::uint32_t callee = function_of(relocation.symbol);
      if (callee != kNone && callee != part.function) calls_.push_back({part.function, callee});
    });
    if (!read) return false;
  }
  std::ranges::sort(calls_);
  const auto repeated = std::ranges::unique(calls_);
  calls_.erase(repeated.begin(), repeated.end());
  return true;
}

// The rows of a function; they are sorted by their first field.
template <typename Row>
std::span<const Row> CubinReader::rows_of(const std::vector<Row>& sorted, std::uint32_t function) {
  const auto begin = std::ranges::lower_bound(sorted, Row{function, 0});
  const auto end = std::lower_bound(begin, sorted.end(), Row{function + 1, 0});
  return {begin, end};
}

// The compiler puts 8 hexadecimal digits into names that are private to a source file. They depend on its folder.
void hash_private_name(std::string_view name, StableHash& hash) {
  constexpr std::size_t kDigits = 8;
  const auto digits_at = [&](std::size_t at) {
    const std::string_view digits = name.substr(at, kDigits);
    return digits.size() == kDigits && digits.find_first_not_of("0123456789abcdef") == digits.npos;
  };
  std::size_t start = 0;
  for (std::size_t at = name.find('_'); at != name.npos; at = name.find('_', at + 1)) {
    if (!digits_at(at + 1)) continue;
    hash.add(name.substr(start, at - start));
    start = at + 1 + kDigits;
    at += kDigits;
  }
  hash.add(name.substr(start));
}

bool CubinReader::hash_target(std::uint32_t function, std::uint32_t symbol_index, StableHash& hash) {
  Elf64_Sym symbol;
  if (!elf_.symbol(symbol_index, symbol)) return false;
  const std::uint32_t section = elf_.section_of(symbol_index, symbol);
  // Do not hash the name, because copies of a kernel have the same code.
  if (section == functions_[function].section) return hash.add(std::uint64_t{symbol.st_value}), true;
  const bool is_section = ELF64_ST_TYPE(symbol.st_info) == STT_SECTION && section != kNone;
  const auto name = is_section ? string(elf_.section_names(), elf_.section(section).sh_name) : string(elf_.symbol_names(), symbol.st_name);
  if (!name) return false;
  if (ELF64_ST_BIND(symbol.st_info) == STB_LOCAL) hash_private_name(*name, hash);
  else hash.add(*name);
  return true;
}

bool CubinReader::hash_relocations(std::uint32_t function, std::uint32_t of_section, StableHash& hash) {
  std::vector<std::array<std::uint64_t, 4>> rows;
  bool good = true;
  for (const CodeSection& part : rows_of(parts_, function)) {
    const Elf64_Shdr section = elf_.section(part.section);
    if (!relocates(section) || section.sh_info != of_section) continue;
    good &= each_relocation(section, [&](const Relocation& r) {
      StableHash target;
      good &= hash_target(function, r.symbol, target);
      rows.push_back({r.offset, r.type, r.addend, target.value()});
    });
  }
  std::ranges::sort(rows);
  for (const auto& row : rows)
    for (const std::uint64_t number : row) hash.add(number);
  return good;
}

bool CubinReader::hash_function(std::uint32_t function) {
  if (functions_[function].hash != 0) return true;
  using Content = std::pair<std::string_view, std::uint32_t>;  // the start of the section's name, the section
  std::vector<Content> contents_of_function;
  for (const CodeSection& part : rows_of(parts_, function)) {
    const Elf64_Shdr section = elf_.section(part.section);
    if (relocates(section)) continue;
    const bool is_code = part.section == functions_[function].section;
    const std::string_view kind = elf_.name_of(section).substr(0, std::strlen(".nv.constant2."));
    contents_of_function.emplace_back(is_code ? "" : kind, part.section);
  }
  std::ranges::sort(contents_of_function);
  StableHash hash;
  for (const auto& [name, section] : contents_of_function) {
    const std::string_view bytes = elf_.contents(elf_.section(section));
    if (!spend(bytes.size())) return false;
    hash.add(name);
    hash.add(bytes);
    if (!hash_relocations(function, section, hash)) return false;
  }
  functions_[function].hash = std::max<std::uint64_t>(hash.value(), 1);
  return true;
}

// The hash of a function and all that it calls.
bool CubinReader::hash_kernel(std::uint32_t function, std::uint64_t& hash) {
  if (!hash_function(function)) return false;
  hash = functions_[function].hash;
  if (rows_of(calls_, function).empty()) return true;
  std::vector<std::uint32_t> reached{function};
  std::vector<std::uint64_t> hashes;
  seen_.resize(functions_.size(), kNone);
  seen_[function] = function;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    for (const CalledFunction& call : rows_of(calls_, reached[i])) {
      if (!spend(sizeof call)) return false;
      if (std::exchange(seen_[call.callee], function) == function) continue;
      if (!hash_function(call.callee)) return false;
      reached.push_back(call.callee);
      hashes.push_back(functions_[call.callee].hash);
    }
  }
  std::ranges::sort(hashes);
  StableHash all;
  all.add(hash);
  for (const std::uint64_t called : hashes) all.add(called);
  hash = std::max<std::uint64_t>(all.value(), 1);
  return true;
}

bool CubinReader::read(Cubin& cubin) {
  if (!read_header(cubin) || !read_symbols() || !read_parts() || !read_calls()) return false;
  cubin.kernels.reserve(kernels_.size());
  for (const CubinKernel& kernel : kernels_) {
    const CubinFunction& function = functions_[kernel.function];
    Elf64_Sym symbol;
    if (!elf_.symbol(kernel.symbol, symbol)) return false;
    const auto name = string(elf_.symbol_names(), symbol.st_name);
    if (!name || name->empty()) return false;
    CubinCode code;
    code.name = *name;
    code.index = kernel.symbol;
    code.size = static_cast<std::uint32_t>(elf_.section(function.section).sh_size);
    code.registers = kernel.registers;
    const std::uint64_t reserved = architecture_ >= kReservesShared ? kReservedShared : 0;
    code.static_shared = static_cast<std::uint32_t>(function.static_shared - std::min(function.static_shared, reserved));
    code.local = std::max(kernel.frame, kernel.stack);
    if (!hash_kernel(kernel.function, code.hash)) return false;
    cubin.kernels.push_back(code);
  }
  return true;
}

}  // namespace

std::optional<Cubin> read_cubin(const void* file, std::size_t size) {
  Cubin cubin;
  if (!CubinReader(file, size).read(cubin)) return std::nullopt;
  return cubin;
}

}  // namespace cutrace
