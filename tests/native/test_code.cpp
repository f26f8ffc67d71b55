// The machine code of kernels: the contents of cubins, and the code of launches.
#include <cuda.h>
#include <cupti_driver_cbid.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "capture_reader.h"
#include "collector/features/code/cubin.h"
#include "collector_under_test.h"
#include "cubins.h"

using namespace cutrace;

namespace {

std::map<std::string, CubinCode> kernels_of(const std::string& file) {
  const std::optional<Cubin> cubin = read_cubin(file.data(), file.size());
  CHECK(cubin.has_value());
  std::map<std::string, CubinCode> kernels;
  for (const CubinCode& code : cubin->kernels) kernels.emplace(code.name, code);
  CHECK_EQUAL(kernels.size(), cubin->kernels.size());
  return kernels;
}

std::uint32_t architecture(const std::string& file) { return read_cubin(file.data(), file.size())->architecture; }

// Reads a damaged file. A copy of its exact size lets the sanitizer see each byte read behind its end.
void read_damaged(const std::string& file) {
  const std::vector<char> copy(file.begin(), file.end());
  const std::optional<Cubin> cubin = read_cubin(copy.data(), copy.size());
  if (!cubin) return;
  for (const CubinCode& code : cubin->kernels) {
    CHECK(!code.name.empty());
    CHECK(code.hash != 0);
    CHECK(code.name.data() >= copy.data() && code.name.data() + code.name.size() < copy.data() + copy.size());
  }
}

const std::string kFiles[] = {"sm_80", "sm_90", "sm_100"};

// A cubin with one kernel.
std::string module_of(const std::string& kernel, const std::string& code, std::uint32_t registers = 8) {
  CubinMaker maker;
  maker.add_kernel(kernel, code, registers, 1024 + 64);
  return maker.file();
}
std::uint64_t hash_of(const std::string& file, const std::string& kernel) { return kernels_of(file).at(kernel).hash; }

using Handle = std::uintptr_t;
constexpr int kSuccess = 0, kFailure = 1;
void* const kContext = reinterpret_cast<void*>(Handle{1});

// A program with calls of the driver, as CUPTI reports them.
struct Program {
  // `injected`: from the start of cuInit(). Otherwise CUDA is already in use.
  void begin(const std::string& more = "code=1", bool injected = true) {
    if (!injected) CHECK(dlopen(DRIVER_PATH, RTLD_NOW | RTLD_GLOBAL) != nullptr);
    CHECK_EQUAL(collector.start((folder.options(more) + ";cupti=" + fake_path()).c_str()), 0);
    if (injected) CHECK_EQUAL(collector.inject(), 1);
    fake_create_context();
    fake_load_module();
  }
  CaptureReader end() {
    CHECK_EQUAL(collector.stop(), 0);
    return CaptureReader(folder.only());
  }

  void loaded(std::uint32_t module, const std::string& cubin, Handle context = 1) {
    fake_module_loaded(module, context, cubin.data(), cubin.size());
  }
  template <typename Parameters>
  void call(std::uint32_t id, Parameters parameters, const std::function<void()>& inside = [] {}, const int* result = &kSuccess) {
    const std::uint32_t correlation = fake_next_correlation();
    fake_driver_call(id, correlation, &parameters, kContext, nullptr);
    inside();
    fake_driver_call(id, correlation, &parameters, kContext, result);
  }
  // cuModuleLoadData(), which loads a module with this number.
  void load(Handle handle, std::uint32_t module, const std::string& cubin) {
    struct {
      Handle* module;
      const void* image;
    } parameters{&handle, cubin.data()};
    call(CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData, parameters, [&] { loaded(module, cubin); });
  }
  // cuModuleGetFunction() or cuLibraryGetKernel()
  void find(Handle function, Handle owner, const char* name, std::uint32_t id = CUPTI_DRIVER_TRACE_CBID_cuModuleGetFunction,
            const std::function<void()>& inside = [] {}) {
    struct {
      Handle* function;
      Handle owner;
      const char* name;
    } parameters{&function, owner, name};
    call(id, parameters, inside);
  }
  void unload(Handle handle, std::uint32_t module) {
    struct {
      Handle module;
    } parameters{handle};
    call(CUPTI_DRIVER_TRACE_CBID_cuModuleUnload, parameters, [&] { fake_module_unloading(module, 1); });
  }
  // cuLaunchKernel(), and the record of its kernel. Returns its correlation id.
  std::uint32_t launch(Handle function, const char* name, const std::function<void()>& inside = [] {}) {
    const std::uint32_t correlation = fake_next_correlation();
    const struct {
      Handle function;
      unsigned grid[3], block[3];
    } parameters{function, {1, 1, 1}, {1, 1, 1}};
    fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, correlation, &parameters, kContext, nullptr);
    inside();
    record(name, correlation);
    fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, correlation, &parameters, kContext, &kSuccess);
    return correlation;
  }
  // A kernel that the runtime launched.
  std::uint32_t run(const char* name, std::uint32_t context = 1) {
    const std::uint32_t correlation = fake_next_correlation();
    record(name, correlation, context);
    return correlation;
  }
  void record(const char* name, std::uint32_t correlation, std::uint32_t context = 1) {
    auto kernel = make<CUpti_ActivityKernel9>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    kernel.gridX = kernel.gridY = kernel.gridZ = kernel.blockX = kernel.blockY = kernel.blockZ = 1;
    kernel.contextId = context;
    kernel.correlationId = correlation;
    kernel.name = name;
    kernel.start = fake_now();
    kernel.end = kernel.start + 1000;
    put(kernel);
  }

  Collector collector;
  Folder folder;
};

// The hashes of launches, by the correlation id of their kernels.
std::map<std::uint32_t, std::uint64_t> launched(const CaptureReader& c) {
  std::map<std::uint32_t, std::uint64_t> codes;
  for (const auto& row : c.rows<rows::Launches>()) codes[std::uint32_t{row.id}] = row.code;
  std::map<std::uint32_t, std::uint64_t> found;
  for (const auto& kernel : c.rows<rows::Kernels>())
    found[std::uint32_t{kernel.correlation}] = codes.at(std::uint32_t{kernel.launch});
  return found;
}

// The names and hashes of the table.
std::multiset<std::pair<std::string, std::uint64_t>> recorded(const CaptureReader& c) {
  std::multiset<std::pair<std::string, std::uint64_t>> codes;
  for (const auto& row : c.rows<rows::KernelCodes>()) codes.emplace(c.text(row.name), std::uint64_t{row.code});
  return codes;
}

}  // namespace

// The values come from `cuobjdump -res-usage`. Its shared memory for sm_100 includes 1024 bytes for the driver.
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
  CHECK_EQUAL(kernels_of(linked).at("calls_outer").local, 8u);  // the stack of the called function
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

// The machine code of both is equal. Only relocations name the called function.
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
      // Bytes after the sections are not needed.
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
    for (int round = 0; round < 1000; ++round) {
      std::string damaged = file;
      for (int i = 0; i < 8; ++i) {
        // Mostly numbers of four bytes, like sizes, offsets and indices.
        const std::size_t at = random() % (damaged.size() - 4) & ~std::size_t{3};
        const auto number = static_cast<std::uint32_t>(random() >> random() % 32);
        std::memcpy(damaged.data() + at, &number, sizeof number);
      }
      read_damaged(damaged);
    }
  }
}

// Many repetitions of the relocations that call all functions.
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

// ---- the code of launches ----

TEST(launched_kernels_have_rows_with_the_properties_of_their_code) {
  Program program;
  const std::string file = cubin_file("sm_100");
  program.begin();
  program.loaded(7, file);
  const std::uint32_t scale = program.run("scale");
  const CaptureReader c = program.end();
  const CubinCode code = kernels_of(file).at("scale");
  const auto rows = c.rows<rows::KernelCodes>();
  CHECK_EQUAL(rows.size(), std::size_t{1});  // calls() was not launched
  CHECK_EQUAL(c.text(rows[0].name), std::string("scale"));
  CHECK_EQUAL(rows[0].code, code.hash);
  CHECK_EQUAL(rows[0].module, 7u);
  CHECK_EQUAL(rows[0].index, code.index);
  CHECK_EQUAL(rows[0].size, 512u);
  CHECK_EQUAL(rows[0].registers, 10u);
  CHECK_EQUAL(rows[0].static_shared, 128u);
  CHECK_EQUAL(rows[0].local_per_thread, 0u);
  CHECK_EQUAL(int{rows[0].architecture}, 100);
  CHECK_EQUAL(int{rows[0].context}, 1);
  CHECK_EQUAL(launched(c).at(scale), code.hash);
  CHECK_EQUAL(c.lost(rows::Loss::code_unknown), 0u);
}

TEST(without_the_option_no_module_is_read) {
  Program program;
  program.begin("kinds=kernel");  // memory reads modules, too
  const unsigned callbacks = fake_callbacks();
  program.load(0x100, 1, module_of("k", "code"));
  program.find(0x101, 0x100, "k");
  CHECK_EQUAL(fake_callbacks(), callbacks);
  const std::uint32_t k = program.launch(0x101, "k");
  const CaptureReader c = program.end();
  CHECK(recorded(c).empty());
  CHECK_EQUAL(launched(c).at(k), 0u);
}

TEST(one_code_in_two_modules_is_one_row) {
  Program program;
  const std::string file = module_of("k", "code");
  program.begin();
  program.loaded(1, file);
  program.loaded(2, file);
  const std::uint32_t k = program.run("k");
  const CaptureReader c = program.end();
  CHECK_EQUAL(recorded(c).size(), std::size_t{1});
  CHECK_EQUAL(launched(c).at(k), hash_of(file, "k"));
}

// The runtime does not report the module of a launch.
TEST(a_name_with_two_codes_is_not_guessed) {
  Program program;
  const std::string one = module_of("k", "one"), two = module_of("k", "two"), other = module_of("other", "other");
  program.begin();
  program.loaded(1, one);
  const std::uint32_t before = program.run("k");
  CHECK_EQUAL(program.collector.flush(), 0);
  program.loaded(2, two);
  program.loaded(3, other);
  const std::uint32_t after = program.run("k"), certain = program.run("other");
  const CaptureReader c = program.end();
  const auto codes = launched(c);
  CHECK_EQUAL(codes.at(before), hash_of(one, "k"));
  CHECK_EQUAL(codes.at(after), 0u);
  CHECK_EQUAL(codes.at(certain), hash_of(other, "other"));
  CHECK(recorded(c).contains({"k", hash_of(one, "k")}));
  CHECK(recorded(c).contains({"k", hash_of(two, "k")}));
  CHECK_EQUAL(recorded(c).size(), std::size_t{3});
}

TEST(a_function_that_was_found_in_a_module_tells_its_code) {
  Program program;
  const std::string one = module_of("k", "one"), two = module_of("k", "two");
  program.begin();
  program.run("earlier");
  const unsigned callbacks = fake_callbacks();
  program.launch(0x301, "k");
  CHECK_EQUAL(fake_callbacks(), callbacks);  // launches are watched after a call has found a function
  program.load(0x100, 1, one);
  program.load(0x200, 2, two);
  program.find(0x101, 0x100, "k");
  program.find(0x201, 0x200, "k");
  std::vector<std::uint32_t> of_one, of_two;
  for (int i = 0; i < 3; ++i) {
    of_one.push_back(program.launch(0x101, "k"));
    of_two.push_back(program.launch(0x201, "k"));
  }
  const std::uint32_t unknown = program.launch(0x301, "k");  // a handle that no call reported
  const auto codes = launched(program.end());
  for (const std::uint32_t correlation : of_one) CHECK_EQUAL(codes.at(correlation), hash_of(one, "k"));
  for (const std::uint32_t correlation : of_two) CHECK_EQUAL(codes.at(correlation), hash_of(two, "k"));
  CHECK_EQUAL(codes.at(unknown), 0u);
}

TEST(handles_of_unloaded_modules_tell_nothing) {
  Program program;
  const std::string one = module_of("k", "one"), two = module_of("k", "two");
  program.begin();
  program.load(0x100, 1, one);
  program.find(0x101, 0x100, "k");
  const std::uint32_t first = program.launch(0x101, "k");
  program.unload(0x100, 1);
  program.loaded(2, two);
  const std::uint32_t reused = program.launch(0x101, "k");  // of a module that was loaded in an unknown way
  program.load(0x100, 3, two);
  program.find(0x101, 0x100, "k");
  const std::uint32_t found = program.launch(0x101, "k");
  const auto codes = launched(program.end());
  CHECK_EQUAL(codes.at(first), hash_of(one, "k"));
  CHECK_EQUAL(codes.at(reused), 0u);
  CHECK_EQUAL(codes.at(found), hash_of(two, "k"));
}

TEST(modules_that_go_with_their_context_tell_nothing) {
  Program program;
  const std::string one = module_of("k", "one");
  program.begin();
  program.load(0x100, 1, one);
  program.find(0x101, 0x100, "k");
  fake_context(1, false);
  program.loaded(2, module_of("k", "two"));
  const std::uint32_t reused = program.launch(0x101, "k");
  CHECK_EQUAL(launched(program.end()).at(reused), 0u);
}

TEST(a_failed_call_finds_no_function) {
  Program program;
  program.begin();
  program.load(0x100, 1, module_of("k", "one"));
  program.loaded(2, module_of("k", "two"));
  Handle function = 0x101;
  struct {
    Handle* function;
    Handle owner;
    const char* name;
  } parameters{&function, 0x100, "k"};
  program.call(CUPTI_DRIVER_TRACE_CBID_cuModuleGetFunction, parameters, [] {}, &kFailure);
  program.find(0x102, 0x100, "other");
  const std::uint32_t k = program.launch(0x101, "k");
  CHECK_EQUAL(launched(program.end()).at(k), 0u);
}

// With lazy loading a library's module is loaded when a kernel is found or launched.
TEST(kernels_of_libraries_tell_their_code) {
  for (const std::string when : {"load", "find", "get", "launch"}) {
    Program program;
    const std::string one = module_of("k", "one"), two = module_of("k", "two");
    program.begin();
    program.loaded(9, two);
    const auto loads = [&](const char* now) { return [&, now] { if (when == now) program.loaded(1, one); }; };
    Handle library = 0x100, function = 0x102;
    struct {
      Handle* library;
      const void* code;
    } load{&library, nullptr};
    program.call(CUPTI_DRIVER_TRACE_CBID_cuLibraryLoadData, load, loads("load"));
    program.find(0x101, library, "k", CUPTI_DRIVER_TRACE_CBID_cuLibraryGetKernel, loads("find"));
    struct {
      Handle* function;
      Handle kernel;
    } get{&function, 0x101};
    if (when != "launch") program.call(CUPTI_DRIVER_TRACE_CBID_cuKernelGetFunction, get, loads("get"));
    const std::uint32_t by_kernel = program.launch(0x101, "k", loads("launch"));
    const std::uint32_t again = program.launch(when == "launch" ? 0x101 : 0x102, "k");
    const auto codes = launched(program.end());
    CHECK_EQUAL(codes.at(by_kernel), hash_of(one, "k"));
    CHECK_EQUAL(codes.at(again), hash_of(one, "k"));
  }
}

TEST(extended_launches_and_modules_of_libraries_tell_their_code) {
  Program program;
  const std::string one = module_of("k", "one"), two = module_of("k", "two");
  program.begin();
  program.loaded(9, two);
  Handle library = 0x100, module = 0x110;
  struct {
    Handle* library;
    const void* code;
  } load{&library, nullptr};
  program.call(CUPTI_DRIVER_TRACE_CBID_cuLibraryLoadFromFile, load, [&] { program.loaded(1, one); });
  struct {
    Handle* module;
    Handle library;
  } get{&module, library};
  for (int i = 0; i < 2; ++i) {  // the same handle again
    program.call(CUPTI_DRIVER_TRACE_CBID_cuLibraryGetModule, get);
    if (i == 0) program.find(0x111, module, "k");
  }
  const std::uint32_t correlation = fake_next_correlation();
  const struct {
    const void* configuration;
    Handle function;
  } launch{nullptr, 0x111};
  fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, correlation, &launch, kContext, nullptr);
  program.record("k", correlation);
  fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, correlation, &launch, kContext, &kSuccess);
  CHECK_EQUAL(launched(program.end()).at(correlation), hash_of(one, "k"));
}

TEST(the_context_tells_between_codes_of_two_gpus) {
  Program program;
  const std::string one = module_of("k", "one"), two = module_of("k", "two");
  program.begin();
  program.loaded(1, one, 1);
  program.loaded(2, two, 2);
  const std::uint32_t first = program.run("k", 1), second = program.run("k", 2), third = program.run("k", 3);
  const auto codes = launched(program.end());
  CHECK_EQUAL(codes.at(first), hash_of(one, "k"));
  CHECK_EQUAL(codes.at(second), hash_of(two, "k"));
  CHECK_EQUAL(codes.at(third), 0u);
}

TEST(a_recording_that_begins_in_mid_program_knows_functions_that_were_found_in_it) {
  Program program;
  const std::string one = module_of("k", "one");
  program.begin("code=1", false);
  program.load(0x100, 1, one);
  program.find(0x101, 0x100, "k");
  const std::uint32_t known = program.launch(0x101, "k"), unknown = program.run("k");
  const CaptureReader c = program.end();
  CHECK_EQUAL(launched(c).at(known), hash_of(one, "k"));
  CHECK_EQUAL(launched(c).at(unknown), 0u);  // an earlier module can have a kernel of this name
  CHECK(c.says("machine code of kernels is known only for functions of modules that were loaded during the recording"));
}

TEST(a_module_that_cannot_be_read_is_counted_and_leaves_other_names_uncertain) {
  Program program;
  const std::string one = module_of("k", "one"), two = module_of("k", "two");
  program.begin();
  program.load(0x100, 1, one);
  program.find(0x101, 0x100, "k");
  program.loaded(2, two.substr(0, two.size() / 2));
  fake_module_loaded(3, 1, nullptr, 0);
  const std::uint32_t known = program.launch(0x101, "k"), unknown = program.run("k");
  const CaptureReader c = program.end();
  CHECK_EQUAL(c.lost(rows::Loss::code_unknown), 2u);
  CHECK_EQUAL(launched(c).at(known), hash_of(one, "k"));
  CHECK_EQUAL(launched(c).at(unknown), 0u);
}

TEST(each_file_of_a_cut_recording_has_the_codes_that_its_launches_name) {
  Program program;
  const std::string one = module_of("k", "one"), two = module_of("k", "two"), other = module_of("other", "other");
  program.begin();
  program.loaded(1, one);
  program.loaded(2, other);
  program.run("k");
  program.run("other");
  const std::string first = program.folder.path + "/first.bin", second = program.folder.path + "/second.bin";
  CHECK_EQUAL(program.collector.cut(first.c_str()), 0);
  program.run("k");
  program.run("k");
  CHECK_EQUAL(program.collector.flush(), 0);
  program.loaded(3, two);
  CHECK_EQUAL(program.collector.cut(second.c_str()), 0);
  program.run("other");
  CHECK_EQUAL(program.collector.stop(), 0);
  const std::pair<std::string, std::uint64_t> k{"k", hash_of(one, "k")}, k2{"k", hash_of(two, "k")}, o{"other", hash_of(other, "other")};
  CHECK((recorded(CaptureReader(first)) == std::multiset{k, o}));
  CHECK((recorded(CaptureReader(second)) == std::multiset{k, k2}));
  for (const std::string& path : program.folder.captures())
    if (path != first && path != second) CHECK((recorded(CaptureReader(path)) == std::multiset{o}));
}

// Code without launches needs no file.
TEST(modules_without_launches_make_no_file) {
  Program program;
  program.begin();
  program.run("k");
  CHECK_EQUAL(program.collector.cut((program.folder.path + "/first.bin").c_str()), 0);
  program.loaded(1, module_of("k", "one"));
  CHECK_EQUAL(program.collector.cut((program.folder.path + "/second.bin").c_str()), 1);
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(code_that_does_not_fit_is_counted) {
  const auto module = [](const std::string& prefix, int count) {
    CubinMaker maker;
    for (int i = 0; i < count; ++i) maker.add_kernel(prefix + std::to_string(i), prefix + std::to_string(i), 8);
    return maker.file();
  };
  Program program;
  program.begin("code=1;max_memory=1048576");  // 1,638 kernels
  program.loaded(1, module("a", 1000));
  const std::uint32_t first = program.run("a1");
  CHECK_EQUAL(program.collector.flush(), 0);
  program.loaded(2, module("b", 1000));
  program.loaded(3, module("c", 2000));  // more modules than can wait for the writer
  const std::uint32_t kept = program.run("a2"), dropped = program.run("b1");
  const CaptureReader c = program.end();
  CHECK_EQUAL(c.lost(rows::Loss::table_limit), 1000u);
  CHECK_EQUAL(c.lost(rows::Loss::code_unknown), 1u);
  CHECK(launched(c).at(first) != 0);
  CHECK_EQUAL(launched(c).at(kept), 0u);  // the dropped part may have had the name
  CHECK_EQUAL(launched(c).at(dropped), 0u);
}

TEST_OF_THREADS(threads_load_modules_while_others_launch) {
  Program program;
  program.begin();
  constexpr int kThreads = 4, kRounds = 200;
  std::vector<std::thread> threads;
  std::vector<std::map<std::uint32_t, std::uint64_t>> expected(kThreads);
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      const auto base = static_cast<Handle>((t + 1) * 0x1000);
      for (int round = 0; round < kRounds; ++round) {
        const std::string file = module_of("k", "code " + std::to_string(t) + " " + std::to_string(round % 7));
        const auto module = static_cast<std::uint32_t>(t * kRounds + round + 1);
        program.load(base, module, file);
        program.find(base + 1, base, "k");
        expected[static_cast<std::size_t>(t)][program.launch(base + 1, "k")] = hash_of(file, "k");
        program.unload(base, module);
      }
    });
  for (std::thread& thread : threads) thread.join();
  const auto codes = launched(program.end());
  CHECK_EQUAL(codes.size(), std::size_t{kThreads * kRounds});
  for (const auto& of_thread : expected)
    for (const auto& [correlation, code] : of_thread) CHECK_EQUAL(codes.at(correlation), code);
}

TEST(a_child_that_loads_modules_does_not_hang) {
  Program program;
  program.begin();
  program.loaded(1, module_of("k", "one"));
  const pid_t child = fork();
  if (child == 0) {
    program.loaded(2, module_of("k", "two"));
    _exit(0);
  }
  int status = 0;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
  program.loaded(3, module_of("other", "three"));
  const std::uint32_t k = program.run("k");
  CHECK_EQUAL(launched(program.end()).at(k), hash_of(module_of("k", "one"), "k"));
}

int main(int argc, char** argv) { return check::main(argc, argv); }
