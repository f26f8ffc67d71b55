// The machine code of the driver's function handles.
//
// CUPTI reports the code and the number of a module. The program has handles of modules, libraries, kernels and functions. A
// module that is loaded inside a call of the driver belongs to the handle that the call makes or takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace cutrace {

struct LoadedKernel {
  std::uint64_t name = 0;  // hash_bytes() of the mangled name
  std::uint64_t code = 0;
  std::uint32_t index = 0, size = 0, registers = 0, static_shared = 0, local = 0;  // as in CubinCode
  std::uint32_t unused = 0;  // modules are compared byte by byte
};

struct LoadedModule {
  std::uint32_t id = 0;       // CUPTI's
  std::uint32_t context = 0;  // CUPTI's, 0 when unknown
  std::uint32_t architecture = 0;
  std::vector<LoadedKernel> kernels;  // by name

  std::span<const LoadedKernel> named(std::uint64_t name) const;
  // The code that all kernels of this name share, or 0.
  std::uint64_t code_of(std::uint64_t name) const;
};

// Not thread-safe. Functions beyond the limit are unknown.
class LoadedFunctions {
 public:
  using Handle = const void*;

  // `most`: the largest number of kernels of all modules.
  void clear(std::size_t most);
  void add(std::shared_ptr<const LoadedModule> module);
  void remove(std::uint32_t module);
  void remove_context(std::uint32_t context);

  // A call made this handle of a module or a library. The handle may have had another meaning before.
  void made(Handle owner);
  // A call made or took the handle, and loaded these modules.
  void own(Handle owner, std::span<const std::uint32_t> modules);
  // A call made another handle from a library. It owns the library's modules.
  void made_from(Handle owner, Handle library);
  // A call found a function by its name; `owner` is a module or a library.
  void found(Handle function, Handle owner, std::uint64_t name);
  // A call made a function of a kernel, or of another function. Modules that it loaded belong to the owner.
  void found_from(Handle function, Handle kernel, std::span<const std::uint32_t> modules);
  // The handle of a module or a library is invalid.
  void forget(Handle owner);

  // Modules that the launch of a function loaded belong to its owner.
  void launched(Handle function, std::span<const std::uint32_t> modules);
  // 0 when it is not known.
  std::uint64_t code(Handle function);

 private:
  struct FoundFunction {
    Handle owner = nullptr;
    std::uint64_t name = 0;
    std::uint64_t code = 0;  // 0: not looked for, or not known
  };
  static constexpr std::size_t kMostHandles = 1 << 16;

  std::size_t most_kernels_ = 0, kernels_ = 0;
  std::unordered_map<std::uint32_t, std::shared_ptr<const LoadedModule>> modules_;
  std::unordered_map<Handle, std::vector<std::uint32_t>> owners_;
  std::unordered_map<Handle, FoundFunction> functions_;
};

}  // namespace cutrace
