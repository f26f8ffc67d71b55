#include "code.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/interning.h"
#include "core/launch_values.h"
#include "core/wake.h"
#include "cubin.h"
#include "loaded_functions.h"

namespace cutrace {
namespace {

constexpr std::string_view kEarlierModules =
    "the machine code of kernels is known only for functions of modules that were loaded during the recording";

// launch_code: the code of the kernel that a call launches.
struct LaunchCodeEvent {
  EventHead head;
  std::uint64_t code;
  std::uint32_t correlation;
  std::uint32_t unused;
};

std::size_t most_kernels(const Options& options) { return options.max_memory / 16 / sizeof(LoadedKernel); }

using ModulePtr = std::shared_ptr<const LoadedModule>;

// The modules that were loaded inside the current call of this thread. Modules beyond this limit belong to no handle.
struct LoadedInside {
  std::array<std::uint32_t, 16> ids{};
  std::size_t count = 0;

  void add(std::uint32_t id) {
    if (count < ids.size()) ids[count++] = id;
  }
  std::span<const std::uint32_t> modules() const { return {ids.data(), count}; }
};
thread_local constinit LoadedInside loaded_inside;

class Code final : public Feature {
 public:
  std::unique_ptr<Decoder> decoder(const DecoderContext& context) override;
  std::span<const EventType> events() const override {
    static constexpr EventType kEvents[] = {EventType::launch_code};
    return kEvents;
  }
  void cupti_loaded(const CuptiLibrary& cupti, Callbacks& callbacks) override;
  void attach(const AttachContext& context) override;
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override;
  void detach(bool) override { on_.store(false); }
  void before_fork() override { mutex_.lock(); }
  void after_fork_in_parent() override { mutex_.unlock(); }
  void after_fork_in_child() override {
    on_.store(false);
    mutex_.unlock();
  }

  // Writer thread: the modules since the last call, and how many could not be read.
  bool any_loaded() const { return any_loaded_.load(std::memory_order_acquire); }
  std::vector<ModulePtr> take_loaded(std::uint64_t& unread);
  // Whether all modules of the process were loaded during this recording.
  bool knows_all() const { return knows_all_.load(); }

 private:
  // The effect of a call on handles. `out` is a pointer to the handle that the call makes.
  enum class Effect : std::uint8_t {
    none,
    makes_module,        // (out module or library, ...)
    makes_from_library,  // (out module, library)
    finds_function,      // (out function, module or library, name)
    finds_from_kernel,   // (out function, kernel)
    unloads,             // (module or library)
    launches,            // (function, ...)
    launches_extended,   // (configuration, function, ...)
  };
  static Effect effect_of(std::string_view name);
  void watch(bool launches);
  void load(const CUpti_ResourceData& data);
  void enter(Effect effect, const void* const* parameters, std::uint32_t correlation);
  void exit(Effect effect, const void* const* parameters, std::uint32_t correlation);
  void put(std::uint64_t code, std::uint32_t correlation);
  std::uint32_t context_id(CUcontext context) const;

  const CuptiLibrary* cupti_ = nullptr;
  Callbacks* callbacks_ = nullptr;
  std::array<Effect, 2048> effects_{};  // of the driver's calls, by callback id
  std::atomic<bool> on_{false};
  std::atomic<bool> knows_all_{false};
  std::atomic<bool> watches_launches_{false};
  std::atomic<bool> any_loaded_{false};
  std::mutex mutex_;  // held for a moment
  LoadedFunctions functions_;
  std::vector<ModulePtr> loaded_;  // not yet taken by the writer
  std::size_t loaded_kernels_ = 0, most_kernels_ = 0;
  std::uint64_t unread_ = 0;
};

Code& code() {
  static auto& feature = *new Code;
  return feature;
}

// ---- the program's threads ----

Code::Effect Code::effect_of(std::string_view name) {
  const auto is = [&](auto... names) { return ((name == names) || ...); };
  if (is("cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuLibraryLoadData", "cuLibraryLoadFromFile"))
    return Effect::makes_module;
  if (is("cuLibraryGetModule")) return Effect::makes_from_library;
  if (is("cuModuleGetFunction", "cuLibraryGetKernel")) return Effect::finds_function;
  if (is("cuKernelGetFunction")) return Effect::finds_from_kernel;
  if (is("cuModuleUnload", "cuLibraryUnload")) return Effect::unloads;
  if (is("cuLaunchKernelEx", "cuLaunchKernelEx_ptsz")) return Effect::launches_extended;
  if (is("cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz"))
    return Effect::launches;
  return Effect::none;
}

void Code::cupti_loaded(const CuptiLibrary& cupti, Callbacks& callbacks) {
  cupti_ = &cupti;
  callbacks_ = &callbacks;
  for (const ApiFunction& function : cupti.api_functions())
    if (function.domain == CUPTI_CB_DOMAIN_DRIVER_API && function.id < effects_.size()) effects_[function.id] = effect_of(function.name);
}

void Code::attach(const AttachContext& context) {
  on_.store(false);
  if (!context.options.code || !(context.options.kinds & bit(Kind::kernel))) return;
  {
    const std::lock_guard lock(mutex_);
    most_kernels_ = most_kernels(context.options);
    functions_.clear(most_kernels_);
    loaded_.clear();
    loaded_kernels_ = 0;
    unread_ = 0;
  }
  any_loaded_.store(false);
  watches_launches_.store(false);
  knows_all_.store(context.before_cuda);
  on_.store(true);
  if (!callbacks_->watch(*this, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED)) {
    on_.store(false);
    return context.notes.add("machine code is not recorded: this libcupti does not tell which modules are loaded");
  }
  callbacks_->watch(*this, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING);
  callbacks_->watch(*this, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING);
  watch(false);
  if (!context.before_cuda) context.notes.add_quietly(kEarlierModules);
}

// Launches are watched only after a call has found a function: before that, no launch has a known handle.
void Code::watch(bool launches) {
  for (std::size_t id = 0; id < effects_.size(); ++id)
    if (effects_[id] != Effect::none && (effects_[id] >= Effect::launches) == launches)
      callbacks_->watch(*this, CUPTI_CB_DOMAIN_DRIVER_API, static_cast<CUpti_CallbackId>(id));
}

void Code::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept {
  if (!on_.load(std::memory_order_relaxed) || data == nullptr) return;
  try {
    if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
      const auto& about = *static_cast<const CUpti_ResourceData*>(data);
      const auto* const module = static_cast<const CUpti_ModuleResourceData*>(about.resourceDescriptor);
      if (id == CUPTI_CBID_RESOURCE_MODULE_LOADED) return load(about);
      const std::lock_guard lock(mutex_);
      if (id == CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING) functions_.remove_context(context_id(about.context));
      else if (module != nullptr) functions_.remove(module->moduleId);
      return;
    }
    if (id >= effects_.size()) return;
    const auto& call = *static_cast<const CUpti_CallbackData*>(data);
    const auto* const parameters = static_cast<const void* const*>(call.functionParams);
    if (parameters == nullptr) return;
    if (call.callbackSite == CUPTI_API_ENTER) return enter(effects_[id], parameters, call.correlationId);
    const auto* const status = static_cast<const int*>(call.functionReturnValue);
    if (status != nullptr && *status == 0) exit(effects_[id], parameters, call.correlationId);
  } catch (const std::exception&) {
    // Without memory this code stays unknown.
  }
}

void Code::load(const CUpti_ResourceData& data) {
  const auto* const given = static_cast<const CUpti_ModuleResourceData*>(data.resourceDescriptor);
  if (given == nullptr) return;
  loaded_inside.add(given->moduleId);
  const auto cubin = given->pCubin != nullptr ? read_cubin(given->pCubin, given->cubinSize) : std::nullopt;
  auto module = std::make_shared<LoadedModule>();
  module->id = given->moduleId;
  module->context = context_id(data.context);
  if (cubin) {
    module->architecture = cubin->architecture;
    module->kernels.reserve(cubin->kernels.size());
    for (const CubinCode& kernel : cubin->kernels) {
      const std::uint64_t name = hash_bytes(kernel.name.data(), kernel.name.size());
      module->kernels.push_back(
          {name, kernel.hash, kernel.index, kernel.size, kernel.registers, kernel.static_shared, kernel.local});
    }
    std::ranges::sort(module->kernels, {}, &LoadedKernel::name);
  }
  const std::lock_guard lock(mutex_);
  const bool fits = loaded_kernels_ + module->kernels.size() <= most_kernels_;
  if (!cubin || !fits) {
    ++unread_;
    knows_all_.store(false);
  } else {
    loaded_kernels_ += module->kernels.size();
    functions_.add(module);
    loaded_.push_back(std::move(module));
  }
  any_loaded_.store(true, std::memory_order_release);
}

void Code::enter(Effect effect, const void* const* parameters, std::uint32_t correlation) {
  loaded_inside.count = 0;
  if (effect == Effect::unloads) {
    const std::lock_guard lock(mutex_);
    functions_.forget(parameters[0]);
  } else if (effect >= Effect::launches) {
    std::unique_lock lock(mutex_);
    const std::uint64_t code = functions_.code(parameters[effect == Effect::launches ? 0 : 1]);
    lock.unlock();
    if (code != 0) put(code, correlation);
  }
}

// The end of a successful call.
void Code::exit(Effect effect, const void* const* parameters, std::uint32_t correlation) {
  const auto made = [&] { return *static_cast<const void* const*>(parameters[0]); };
  const auto modules = loaded_inside.modules();
  std::unique_lock lock(mutex_);
  switch (effect) {
    case Effect::makes_module:
      functions_.made(made());
      return functions_.own(made(), modules);
    case Effect::makes_from_library:
      functions_.own(parameters[1], modules);
      return functions_.made_from(made(), parameters[1]);
    case Effect::finds_function: {
      const auto* const name = static_cast<const char*>(parameters[2]);
      if (name == nullptr) return;
      functions_.own(parameters[1], modules);
      functions_.found(made(), parameters[1], hash_bytes(name, std::strlen(name)));
      break;
    }
    case Effect::finds_from_kernel: functions_.found_from(made(), parameters[1], modules); break;
    case Effect::launches:
    case Effect::launches_extended: {
      // The first launch of a library's kernel can load the kernel, so its code was unknown when the launch started.
      if (modules.empty()) return;
      const void* const function = parameters[effect == Effect::launches ? 0 : 1];
      functions_.launched(function, modules);
      const std::uint64_t code = functions_.code(function);
      lock.unlock();
      if (code != 0) put(code, correlation);
      return;
    }
    default: return;
  }
  lock.unlock();
  if (!watches_launches_.exchange(true)) watch(true);
}

void Code::put(std::uint64_t code, std::uint32_t correlation) {
  Ring* const ring = rings::of_this_thread(EventSource::code);
  std::uint8_t* const at = ring != nullptr ? ring->reserve(sizeof(LaunchCodeEvent)) : nullptr;
  if (at == nullptr) return;
  const LaunchCodeEvent event{{sizeof(LaunchCodeEvent), EventType::launch_code, 0, 0}, code, correlation, 0};
  std::memcpy(at, &event, sizeof event);
  if (ring->commit(sizeof event)) writer_wake.signal();
}

std::uint32_t Code::context_id(CUcontext context) const {
  std::uint32_t id = 0;
  const auto get = cupti_->GetContextId;
  return context != nullptr && get != nullptr && get(context, &id) == CUPTI_SUCCESS ? id : 0;
}

// ---- the writer's thread ----

std::vector<ModulePtr> Code::take_loaded(std::uint64_t& unread) {
  const std::lock_guard lock(mutex_);
  any_loaded_.store(false, std::memory_order_relaxed);
  loaded_kernels_ = 0;
  unread = std::exchange(unread_, 0);
  return std::exchange(loaded_, {});
}

class CodeDecoder final : public Decoder {
 public:
  CodeDecoder(const DecoderContext& context, Code& code)
      : code_(code), capture_(context.capture), launches_(context.options.max_memory / 32),
        most_kernels_(most_kernels(context.options)), most_names_(context.options.max_memory / 32) {}

  void event(const Ring& ring, const std::uint8_t* bytes) override;
  bool completes_launches() const override { return true; }
  void complete_launch(const CUpti_ActivityKernel9& record, std::string_view name, rows::Launches& launch) override;
  void write_out(bool last) override;
  std::size_t memory() const override { return launches_.memory() + kernels_ * sizeof(LoadedKernel) + name_bytes_; }

 private:
  // The codes under the name of a launched kernel.
  struct Known {
    std::string name;
    std::vector<rows::KernelCodes> rows;  // without the name
    std::size_t written = 0;              // the number of rows in the file
    std::uint32_t file = 0;               // the last file that has a launch of this name
  };

  void take_loaded();
  void keep(ModulePtr module);
  Known* known(std::string_view name);
  static void add(Known& known, const LoadedModule& module, std::uint64_t name);
  void write(Known& known);
  std::uint64_t only_code(const Known& known, std::uint32_t context) const;

  Code& code_;
  Capture& capture_;
  LaunchValues launches_;  // the code of each launch
  std::vector<ModulePtr> modules_;
  std::unordered_set<std::uint64_t> contents_;      // hashes of the contents of these modules
  std::unordered_map<std::uint64_t, Known> known_;  // the keys are hash_bytes() of the name
  std::size_t kernels_ = 0, name_bytes_ = 0;
  std::size_t most_kernels_, most_names_;
  bool complete_ = true;  // no module or name was left out for lack of room
};

std::unique_ptr<Decoder> Code::decoder(const DecoderContext& context) {
  if (!context.options.code || !(context.options.kinds & bit(Kind::kernel))) return nullptr;
  return std::make_unique<CodeDecoder>(context, *this);
}

void CodeDecoder::event(const Ring&, const std::uint8_t* bytes) {
  LaunchCodeEvent event;
  std::memcpy(&event, bytes, sizeof event);
  launches_.add(event.correlation, event.code, !capture_.keeps_nothing());
}

void CodeDecoder::take_loaded() {
  std::uint64_t unread = 0;
  for (ModulePtr& module : code_.take_loaded(unread)) keep(std::move(module));
  capture_.lose(rows::Loss::code_unknown, unread, "modules");
}

// A module that is loaded again with the same code adds nothing.
void CodeDecoder::keep(ModulePtr module) {
  const std::string_view kernels(reinterpret_cast<const char*>(module->kernels.data()), module->kernels.size() * sizeof(LoadedKernel));
  if (!contents_.insert(hash_mix(hash_bytes(kernels.data(), kernels.size()), module->context)).second) return;
  if (kernels_ + module->kernels.size() > most_kernels_) {
    capture_.lose(rows::Loss::table_limit, module->kernels.size(), "machine code of kernels");
    complete_ = false;
    return;
  }
  kernels_ += module->kernels.size();
  for (auto& [name, known] : known_) {
    add(known, *module, name);
    if (known.file == capture_.references()) write(known);
  }
  modules_.push_back(std::move(module));
}

void CodeDecoder::add(Known& known, const LoadedModule& module, std::uint64_t name) {
  for (const LoadedKernel& kernel : module.named(name)) {
    rows::KernelCodes row;
    row.code = kernel.code;
    row.module = module.id;
    row.index = kernel.index;
    row.size = kernel.size;
    row.registers = kernel.registers;
    row.static_shared = kernel.static_shared;
    row.local_per_thread = kernel.local;
    row.context = static_cast<std::uint16_t>(module.context);
    row.architecture = static_cast<std::uint16_t>(module.architecture);
    const auto same = [&](const rows::KernelCodes& other) { return other.code == row.code && other.context == row.context; };
    if (std::ranges::none_of(known.rows, same)) known.rows.push_back(row);
  }
}

// Null when there is no room for it.
CodeDecoder::Known* CodeDecoder::known(std::string_view name) {
  const std::uint64_t hash = hash_bytes(name.data(), name.size());
  if (const auto found = known_.find(hash); found != known_.end()) return &found->second;
  if (name_bytes_ > most_names_) return nullptr;
  Known& known = known_[hash];
  known.name = name;
  for (const ModulePtr& module : modules_) add(known, *module, hash);
  name_bytes_ += name.size() + known.rows.size() * sizeof(rows::KernelCodes) + sizeof(Known) + 32;
  return &known;
}

// A file with launches of a name has all codes of the name.
void CodeDecoder::write(Known& known) {
  if (std::exchange(known.file, capture_.references()) != capture_.references()) known.written = 0;
  for (; known.written < known.rows.size(); ++known.written) {
    rows::KernelCodes row = known.rows[known.written];
    row.name = capture_.string(known.name);
    capture_.add(row);
  }
}

void CodeDecoder::complete_launch(const CUpti_ActivityKernel9& record, std::string_view name, rows::Launches& launch) {
  // A kernel's record comes after its module was loaded.
  if (code_.any_loaded()) take_loaded();
  launch.code = launches_.take(record.correlationId);
  Known* const known = this->known(name);
  if (known == nullptr) return;
  if (known->file != capture_.references()) write(*known);
  if (launch.code == 0) launch.code = only_code(*known, record.contextId);
}

// The code of the name; 0 when the name may have several codes.
std::uint64_t CodeDecoder::only_code(const Known& known, std::uint32_t context) const {
  if (!complete_ || !code_.knows_all()) return 0;
  const auto only = [&](auto&& matches) {
    std::uint64_t code = 0;
    for (const rows::KernelCodes& row : known.rows) {
      if (!matches(row)) continue;
      if (code != 0 && code != row.code) return std::uint64_t{0};
      code = row.code;
    }
    return code;
  };
  const std::uint64_t anywhere = only([](const rows::KernelCodes&) { return true; });
  return anywhere != 0 ? anywhere : only([&](const rows::KernelCodes& row) { return row.context == context; });
}

void CodeDecoder::write_out(bool) {
  if (code_.any_loaded()) take_loaded();
}

}  // namespace

Feature& code_feature() { return code(); }

}  // namespace cutrace
