#include "loaded_functions.h"

#include <algorithm>
#include <utility>

namespace cutrace {

std::span<const LoadedKernel> LoadedModule::named(std::uint64_t name) const {
  const auto same = std::ranges::equal_range(kernels, name, {}, &LoadedKernel::name);
  return {same.begin(), same.end()};
}

std::uint64_t LoadedModule::code_of(std::uint64_t name) const {
  const std::span<const LoadedKernel> same = named(name);
  if (same.empty()) return 0;
  const std::uint64_t code = same.front().code;
  return std::ranges::all_of(same, [&](const LoadedKernel& kernel) { return kernel.code == code; }) ? code : 0;
}

void LoadedFunctions::clear(std::size_t most) {
  most_kernels_ = most;
  kernels_ = 0;
  modules_.clear();
  owners_.clear();
  functions_.clear();
}

void LoadedFunctions::add(std::shared_ptr<const LoadedModule> module) {
  remove(module->id);
  if (modules_.size() >= kMostHandles || kernels_ + module->kernels.size() > most_kernels_) return;
  kernels_ += module->kernels.size();
  modules_.emplace(module->id, std::move(module));
}

// Forget the functions with their module, because the driver reuses their handles.
void LoadedFunctions::remove(std::uint32_t module) {
  if (const auto known = modules_.extract(module)) kernels_ -= known.mapped()->kernels.size();
  std::vector<Handle> gone;
  for (const auto& [owner, modules] : owners_)
    if (std::ranges::find(modules, module) != modules.end()) gone.push_back(owner);
  for (const Handle owner : gone) forget(owner);
}

void LoadedFunctions::remove_context(std::uint32_t context) {
  std::vector<std::uint32_t> gone;
  for (const auto& [id, module] : modules_)
    if (module->context == context || module->context == 0 || context == 0) gone.push_back(id);
  for (const std::uint32_t id : gone) remove(id);
}

void LoadedFunctions::forget(Handle owner) {
  owners_.erase(owner);
  std::erase_if(functions_, [&](const auto& function) { return function.second.owner == owner; });
}

void LoadedFunctions::made(Handle owner) {
  forget(owner);
  if (owners_.size() < kMostHandles) owners_.try_emplace(owner);
}

void LoadedFunctions::own(Handle owner, std::span<const std::uint32_t> modules) {
  const auto known = owners_.find(owner);
  if (known == owners_.end()) return;
  for (const std::uint32_t module : modules)
    if (std::ranges::find(known->second, module) == known->second.end()) known->second.push_back(module);
}

// All calls for one library make the same handle.
void LoadedFunctions::made_from(Handle owner, Handle library) {
  const auto known = owners_.find(library);
  if (known == owners_.end()) return forget(owner);
  const std::vector<std::uint32_t> modules = known->second;
  if (!owners_.contains(owner)) made(owner);
  own(owner, modules);
}

void LoadedFunctions::found(Handle function, Handle owner, std::uint64_t name) {
  functions_.erase(function);
  if (owners_.contains(owner) && functions_.size() < kMostHandles) functions_.emplace(function, FoundFunction{owner, name});
}

void LoadedFunctions::found_from(Handle function, Handle kernel, std::span<const std::uint32_t> modules) {
  const auto known = functions_.find(kernel);
  if (known == functions_.end()) return static_cast<void>(functions_.erase(function));
  const auto [owner, name, code] = known->second;
  own(owner, modules);
  found(function, owner, name);
}

void LoadedFunctions::launched(Handle function, std::span<const std::uint32_t> modules) {
  const auto known = functions_.find(function);
  if (known != functions_.end()) own(known->second.owner, modules);
}

std::uint64_t LoadedFunctions::code(Handle handle) {
  const auto known = functions_.find(handle);
  if (known == functions_.end()) return 0;
  FoundFunction& function = known->second;
  if (function.code != 0) return function.code;
  std::uint64_t code = 0;
  for (const std::uint32_t id : owners_.at(function.owner)) {
    const auto module = modules_.find(id);
    const std::uint64_t here = module != modules_.end() ? module->second->code_of(function.name) : 0;
    if (here != 0 && code != 0 && here != code) return 0;  // the modules of a library in contexts of several GPUs
    if (here != 0) code = here;
  }
  return function.code = code;
}

}  // namespace cutrace
