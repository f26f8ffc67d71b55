// The machine code of kernels: reading cubins.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "check.h"
#include "collector/features/code/cubin.h"
#include "cubins.h"

using namespace cutrace;

namespace {

std::map<std::string, KernelCode> kernels_of(const std::string& file) {
  const std::optional<Cubin> cubin = read_cubin(file.data(), file.size());
  CHECK(cubin.has_value());
  std::map<std::string, KernelCode> kernels;
  for (const KernelCode& code : cubin->kernels) kernels.emplace(code.name, code);
  CHECK_EQUAL(kernels.size(), cubin->kernels.size());
  return kernels;
}

std::uint32_t architecture(const std::string& file) { return read_cubin(file.data(), file.size())->architecture; }

// Reads a damaged file. A copy of its exact size lets the sanitizer see each byte read behind its end.
void read_damaged(const std::string& file) {
  const std::vector<char> copy(file.begin(), file.end());
  const std::optional<Cubin> cubin = read_cubin(copy.data(), copy.size());
  if (!cubin) return;
  for (const KernelCode& code : cubin->kernels) {
    CHECK(!code.name.empty());
    CHECK(code.hash != 0);
    CHECK(code.name.data() >= copy.data() && code.name.data() + code.name.size() < copy.data() + copy.size());
  }
}

const std::string kFiles[] = {"sm_80", "sm_90", "sm_100"};

}  // namespace

// As `cuobjdump -res-usage` tells it. Its shared memory of sm_100 includes 1024 bytes for the driver.
TEST(properties_of_kernels_are_those_that_cuobjdump_tells) {
  const std::string old = cubin_file("sm_80"), recent = cubin_file("sm_100"), linked = cubin_file("sm_90");
  CHECK_EQUAL(architecture(old), 80u);
  CHECK_EQUAL(architecture(linked), 90u);
  CHECK_EQUAL(architecture(recent), 100u);
  for (const std::string& file : {old, recent}) {
    const auto kernels = kernels_of(file);
    CHECK_EQUAL(kernels.size(), std::size_t{2});
    CHECK_EQUAL(kernels.at("scale").registers, 10u);
    CHECK_EQUAL(kernels.at("scale").static_shared, 128u);
    CHECK_EQUAL(kernels.at("scale").local, 0u);
    CHECK_EQUAL(kernels.at("calls").registers, 21u);
    CHECK_EQUAL(kernels.at("calls").static_shared, 0u);
    CHECK_EQUAL(kernels.at("calls").local, 32u);
  }
  CHECK_EQUAL(kernels_of(old).at("scale").size, 384u);
  CHECK_EQUAL(kernels_of(old).at("scale").index, 12u);
  CHECK_EQUAL(kernels_of(recent).at("scale").size, 512u);
  CHECK_EQUAL(kernels_of(recent).at("scale").index, 16u);
  CHECK_EQUAL(kernels_of(linked).at("calls_inner").registers, 24u);
  CHECK_EQUAL(kernels_of(linked).at("calls_inner").local, 0u);
  CHECK_EQUAL(kernels_of(linked).at("calls_outer").local, 8u);  // the stack of the function that it calls
}

// Captures of two machines are compared, so these numbers must never change.
TEST(hashes_of_code_are_the_same_in_every_process) {
  CHECK_EQUAL(kernels_of(cubin_file("sm_80")).at("scale").hash, 0xe7b8b13667d8ea81u);
  CHECK_EQUAL(kernels_of(cubin_file("sm_100")).at("scale").hash, 0x44dc9ac2e148c399u);
  CHECK_EQUAL(kernels_of(cubin_file("sm_90")).at("calls_outer").hash, 0xd3fff223610d1607u);
}

TEST(the_order_of_functions_in_a_module_does_not_change_hashes) {
  const auto one = kernels_of(cubin_file("sm_90")), other = kernels_of(cubin_file("sm_90_reordered"));
  for (const auto& [name, code] : one) {
    CHECK_EQUAL(other.at(name).hash, code.hash);
    CHECK(other.at(name).index != code.index);
  }
}

// Their own machine code is equal: only relocations tell which function they call.
TEST(kernels_that_call_different_functions_have_different_hashes) {
  const std::string file = cubin_file("sm_90");
  const auto code = [&](const char* name) { return file.substr(section_at(file, name), 384); };
  CHECK(code(".text.calls_inner") == code(".text.calls_outer"));
  const auto kernels = kernels_of(file);
  CHECK(kernels.at("calls_inner").hash != kernels.at("calls_outer").hash);
}

TEST(other_code_of_a_called_function_changes_the_hash_of_the_kernel) {
  const std::string file = cubin_file("sm_90");
  const auto before = kernels_of(file);
  const auto inner = kernels_of(with_other_code(file, "_Z5innerfi")), outer = kernels_of(with_other_code(file, "_Z5outerfi"));
  CHECK(inner.at("calls_inner").hash != before.at("calls_inner").hash);
  CHECK(inner.at("calls_outer").hash != before.at("calls_outer").hash);  // through outer()
  CHECK_EQUAL(outer.at("calls_inner").hash, before.at("calls_inner").hash);
  CHECK(outer.at("calls_outer").hash != before.at("calls_outer").hash);
}

TEST(other_code_of_a_kernel_changes_its_hash_alone) {
  for (const std::string name : {"sm_80", "sm_100"}) {
    const std::string file = cubin_file(name);
    const auto before = kernels_of(file), after = kernels_of(with_other_code(file, "scale"));
    CHECK(after.at("scale").hash != before.at("scale").hash);
    CHECK_EQUAL(after.at("calls").hash, before.at("calls").hash);
  }
}

TEST(equal_code_under_two_names_has_one_hash) {
  CubinMaker maker;
  maker.add_kernel("a", std::string(64, 'x'), 8);
  maker.add_kernel("b", std::string(64, 'x'), 8);
  maker.add_kernel("c", std::string(80, 'x'), 8);
  const auto kernels = kernels_of(maker.file());
  CHECK_EQUAL(kernels.at("a").hash, kernels.at("b").hash);
  CHECK(kernels.at("a").hash != kernels.at("c").hash);
}

TEST(relocations_count_by_name_in_any_order) {
  const auto hash = [](std::vector<Elf64_Rela> rows, const std::string& other) {
    CubinMaker maker;
    maker.add_kernel("k", std::string(64, 'x'), 8);
    maker.add_kernel(other, std::string(64, 'y'), 8);
    maker.add_relocations(0, rows);
    return kernels_of(maker.file()).at("k").hash;
  };
  const Elf64_Rela first{16, ELF64_R_INFO(2, 5), 0}, second{32, ELF64_R_INFO(1, 5), 8}, moved{24, ELF64_R_INFO(2, 5), 0};
  CHECK_EQUAL(hash({first, second}, "other"), hash({second, first}, "other"));
  CHECK(hash({first, second}, "other") != hash({first, second}, "another"));
  CHECK(hash({first, second}, "other") != hash({moved, second}, "other"));
  CHECK(hash({first}, "other") != hash({first, second}, "other"));
}

TEST(functions_that_call_each_other_are_read) {
  CubinMaker maker;
  for (const char* name : {"a", "b", "c"}) maker.add_kernel(name, std::string(64, *name), 8);
  for (std::uint32_t i = 0; i < 3; ++i) maker.add_relocations(i, {{0, ELF64_R_INFO(1 + (i + 1) % 3, 5), 0}});
  CHECK_EQUAL(kernels_of(maker.file()).size(), std::size_t{3});
}

TEST(cubins_with_more_sections_than_sixteen_bits_count_are_read) {
  CubinMaker maker;
  constexpr std::uint32_t kKernels = 33'000;
  for (std::uint32_t i = 0; i < kKernels; ++i) maker.add_kernel("k" + std::to_string(i), std::to_string(i), i % 255, 1024 + i);
  const auto kernels = kernels_of(maker.file());
  CHECK_EQUAL(kernels.size(), std::size_t{kKernels});
  CHECK_EQUAL(kernels.at("k32999").registers, 32'999u % 255);
  CHECK_EQUAL(kernels.at("k32999").static_shared, 32'999u);
}

TEST(files_that_are_no_cubins_are_refused) {
  std::string file = cubin_file("sm_90");
  CHECK(!read_cubin(nullptr, 0));
  CHECK(!read_cubin("\x7f" "ELF", 4));
  file[EI_CLASS] = ELFCLASS32;
  CHECK(!read_cubin(file.data(), file.size()));
  file[EI_CLASS] = ELFCLASS64;
  file[offsetof(Elf64_Ehdr, e_machine)] = EM_X86_64;
  CHECK(!read_cubin(file.data(), file.size()));
}

TEST(truncated_cubins_are_refused) {
  for (const std::string& name : kFiles) {
    const std::string file = cubin_file(name);
    for (std::size_t size = 0; size < file.size(); ++size) {
      const std::vector<char> copy(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      // What follows the sections is not needed.
      if (const auto cubin = read_cubin(copy.data(), size)) CHECK_EQUAL(cubin->kernels.size(), std::size_t{2});
    }
    CHECK(!read_cubin(file.data(), file.size() / 2));
  }
}

TEST(damaged_cubins_are_read_within_their_bounds) {
  constexpr unsigned char kValues[] = {0, 1, 0x7f, 0x80, 0xff};
  for (const std::string& name : kFiles) {
    const std::string file = cubin_file(name);
    for (std::size_t at = 0; at < file.size(); ++at) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(kValues[at % std::size(kValues)]);
      read_damaged(damaged);
    }
    std::mt19937 random(17);
    for (int round = 0; round < 3000; ++round) {
      std::string damaged = file;
      for (int i = 0; i < 8; ++i) {
        // Mostly numbers of four bytes, as sizes, offsets and indexes are.
        const std::size_t at = random() % (damaged.size() - 4) & ~std::size_t{3};
        const auto number = static_cast<std::uint32_t>(random() >> random() % 32);
        std::memcpy(damaged.data() + at, &number, sizeof number);
      }
      read_damaged(damaged);
    }
  }
}

// The same relocations again and again, which call all functions.
TEST(the_work_for_a_cubin_is_bounded) {
  CubinMaker maker;
  constexpr std::uint32_t kKernels = 2000;
  for (std::uint32_t i = 0; i < kKernels; ++i) maker.add_kernel("k" + std::to_string(i), "x", 8);
  std::vector<Elf64_Rela> calls;
  for (std::uint32_t i = 0; i < kKernels; ++i) calls.push_back({i, ELF64_R_INFO(i + 1, 5), 0});
  maker.add_relocations(0, calls);
  std::string file = maker.file();
  CHECK(read_cubin(file.data(), file.size()));
  Elf64_Ehdr header;
  std::memcpy(&header, file.data(), sizeof header);
  Elf64_Shdr relocations;
  const auto row = [&](std::size_t section) { return file.data() + header.e_shoff + section * sizeof(Elf64_Shdr); };
  std::memcpy(&relocations, row(header.e_shnum - 1u), sizeof relocations);
  for (std::uint32_t kernel = 1; kernel < kKernels; ++kernel) {  // the sections of shared memory become relocations
    relocations.sh_info = 5 + 2 * kernel;
    std::memcpy(row(5 + 2 * kernel + 1), &relocations, sizeof relocations);
  }
  CHECK(!read_cubin(file.data(), file.size()));
}

int main(int argc, char** argv) { return check::main(argc, argv); }
