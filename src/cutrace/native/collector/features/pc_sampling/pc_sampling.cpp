#include "pc_sampling.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "common/private_folder.h"
#include "core/blocked_signals.h"
#include "core/clock.h"
#include "cuda/driver.h"

namespace cutrace {
namespace {

constexpr std::uint64_t kInterval = 500'000'000;  // ns covered by the sums of a row
constexpr std::string_view kReasonPrefix = "smsp__pcsamp_warps_issue_stalled_", kNotIssued = "_not_issued";
constexpr std::string_view kLost = "smsp__pcsamp_samples_data_dropped";
constexpr CUpti_CallbackId kWatched[] = {
    CUPTI_CBID_RESOURCE_CONTEXT_CREATED, CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, CUPTI_CBID_RESOURCE_MODULE_LOADED,
    CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING};

// CUPTI's parameters start with their size and a null pointer.
template <typename Params>
Params params(CUcontext context) {
  Params made{};
  made.size = sizeof made;
  made.ctx = context;
  return made;
}

// Whether a cubin has line information. Cubins of libraries are large, and most of them have no line information.
bool has_lines(const CUpti_ModuleResourceData& module) {
  return module.pCubin != nullptr && std::string_view(module.pCubin, module.cubinSize).find("debug_line") != std::string_view::npos;
}

// Locks a mutex, if it becomes free in time. The wait is bounded, because callbacks hold locks of the driver that a thread inside
// CUPTI may need. The mutex is not a timed one, because ThreadSanitizer does not know all functions of timed mutexes.
class Control {
 public:
  explicit Control(std::mutex& mutex) : lock_(mutex, std::try_to_lock) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!lock_ && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      static_cast<void>(lock_.try_lock());
    }
    held = lock_.owns_lock();
  }
  ~Control() { held = false; }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  explicit operator bool() const { return lock_.owns_lock(); }

  // Whether this thread holds the mutex: CUPTI may call back inside its own functions.
  static thread_local bool held;

 private:
  const BlockedCancellation whole_;
  std::unique_lock<std::mutex> lock_;
};
thread_local bool Control::held = false;

}  // namespace

PcSampling::Buffer::Buffer(std::size_t count) : pcs(kPcs), reasons(kPcs * count) {
  for (std::size_t i = 0; i < kPcs; ++i) {
    pcs[i].size = sizeof pcs[i];
    pcs[i].stallReason = reasons.data() + i * count;
  }
  data.size = sizeof data;
  data.collectNumPcs = kPcs;
  data.pPcData = pcs.data();
}

bool PcSampling::start(const AttachContext& context) {
  const CuptiLibrary& cupti = context.cupti;
  const bool complete = cupti.PCSamplingEnable && cupti.PCSamplingDisable && cupti.PCSamplingStart &&
                        cupti.PCSamplingStop && cupti.PCSamplingGetData &&
                        cupti.PCSamplingGetNumStallReasons && cupti.PCSamplingGetStallReasons &&
                        cupti.PCSamplingSetConfigurationAttribute && context.callbacks.available() && cupti.GetDeviceId;
  if (!complete) return false;
  const std::lock_guard lock(control_);
  cupti_ = &cupti;
  callbacks_ = &context.callbacks;
  kinds_ = &context.kinds;
  period_ = context.options.sample_period;
  contexts_.clear();
  waiting_.clear();
  if (!context.before_cuda) waiting_ = known_contexts();
  waits_.store(!waiting_.empty());
  lines_ = std::make_unique<SourceLines>(cupti);
  said_.clear();
  {
    const std::lock_guard next(next_mutex_);
    destroyed_.clear();
    next_ = {};
    next_.start = now_ns();
  }
  // Keep the known lines, because the modules of an earlier recording are not loaded again.
  if (instructions_.size() < kMostInstructions) {
    std::erase_if(instructions_, [](const auto& one) { return one.second.line == 0; });
  } else {
    instructions_.clear();
    texts_.clear();
  }
  on_.store(true);
  for (const CUpti_CallbackId id : kWatched) callbacks_->watch(*this, CUPTI_CB_DOMAIN_RESOURCE, id);
  if (waits_.load()) watch_work(true);
  return true;
}

void PcSampling::kinds_enabled(const AttachContext& context) {
  if (!context.options.sample_pc) return;
  if (start(context)) return flush();
  context.notes.add("program counters were not sampled: this libcupti cannot sample program counters; use CUPTI 12.0 or later");
}

// A context is sampled before its first work, not only at the next flush.
void PcSampling::watch_work(bool on) {
  for (const ApiFunction& function : cupti_->api_functions()) {
    if (!submits_work(function.name)) continue;
    if (on) callbacks_->watch(*this, function.domain, function.id);
    else callbacks_->unwatch(*this, function.domain, function.id);
  }
}

void PcSampling::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept {
  if (!on() || Control::held) return;
  const bool resource = domain == CUPTI_CB_DOMAIN_RESOURCE;
  if (resource ? data == nullptr : !recorded() || !waits_.load()) return;
  const Control control(control_);
  try {
    if (!control && resource && id == CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING) {
      const std::lock_guard lock(next_mutex_);
      destroyed_.push_back(static_cast<const CUpti_ResourceData*>(data)->context);
    }
    if (!control || !on()) return;  // the recording may have ended meanwhile
    drop_destroyed();
    if (!resource) return begin_waiting();
    const auto& about = *static_cast<const CUpti_ResourceData*>(data);
    const auto known = std::ranges::find(contexts_, about.context, &Context::context);
    switch (id) {
      case CUPTI_CBID_RESOURCE_CONTEXT_CREATED:
        waiting_.push_back(about.context);
        waits_.store(true);
        if (recorded()) begin_waiting();
        else watch_work(true);
        return;
      case CUPTI_CBID_RESOURCE_MODULE_LOADED:
        if (const auto* module = static_cast<const CUpti_ModuleResourceData*>(about.resourceDescriptor))
          if (has_lines(*module) && !lines_->add(module->pCubin, module->cubinSize))
            say("source lines of some modules are unknown: the program loaded more of them than the collector keeps");
        return;
      case CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING:
        if (known != contexts_.end()) read(*known);  // the next module may have the same addresses
        return;
      default:
        std::erase(waiting_, about.context);
        if (known == contexts_.end()) return;
        end(*known);
        contexts_.erase(known);
    }
  } catch (const std::exception&) {
    // Without memory these samples are lost.
  }
}

void PcSampling::flush() {
  if (!on()) return;
  const Control control(control_);
  if (!control || !on()) return;
  drop_destroyed();
  if (recorded()) begin_waiting();
  for (Context& context : contexts_) read(context);
  lines_->drop_repeated();
}

void PcSampling::detach(bool) {
  if (!on()) return;
  const Control control(control_);
  if (!control) return;
  drop_destroyed();
  for (Context& context : contexts_) end(context);
  contexts_.clear();
  waiting_.clear();
  lines_.reset();
  on_.store(false);
}

void PcSampling::after_fork_in_child() {
  on_.store(false);
  next_ = {};  // the samples and contexts belong to the parent
  destroyed_.clear();
  next_mutex_.unlock();
  // If another thread was changing the contexts at the fork, their GPU locks stay.
  const std::unique_lock lock(control_, std::try_to_lock);
  if (lock.owns_lock())
    for (Context& context : contexts_) context.lock.forget();
}

PcSampling::Taken PcSampling::take(bool last) {
  const std::lock_guard lock(next_mutex_);
  const std::uint64_t now = now_ns();
  if (!last && now - next_.start < kInterval && next_.notes.empty()) return {};
  Taken taken = std::exchange(next_, {});
  taken.end = next_.start = now;
  return taken;
}

// Writes the samples of a recording.
class PcSamplingDecoder final : public Decoder {
 public:
  PcSamplingDecoder(PcSampling& source, const DecoderContext& context) : source_(source), context_(context) {}

  void write_out(bool last) override {
    Capture& capture = context_.capture;
    const PcSampling::Taken taken = source_.take(last);
    for (const std::string& note : taken.notes) context_.notes.add_quietly(note);
    capture.lose(rows::Loss::samples_lost, taken.lost, "program counters");
    capture.lose(rows::Loss::memory_limit, taken.forgotten, "program counters");
    for (const auto& [where, sum] : taken.sums) {
      const auto& [at, stall, device] = where;
      rows::PcSamples row;
      row.start = taken.start;
      row.end = taken.end;
      row.samples = sum.samples;
      row.not_issued = sum.not_issued;
      row.device = device;
      row.function = capture.string(at->function);
      row.offset = at->offset;
      row.file = capture.string(at->file);
      row.line = at->line;
      row.stall = capture.string(stall);
      capture.add(row);
    }
  }

 private:
  PcSampling& source_;
  DecoderContext context_;
};

std::unique_ptr<Decoder> PcSampling::decoder(const DecoderContext& context) {
  if (!context.options.sample_pc) return nullptr;
  return std::make_unique<PcSamplingDecoder>(*this, context);
}

// Notes each sentence once.
void PcSampling::say(const std::string& sentence) {
  if (!said_.insert(sentence).second) return;
  const std::lock_guard lock(next_mutex_);
  next_.notes.push_back(sentence);
}

// ---- contexts ----

bool PcSampling::GpuLock::take(const std::string& uuid) {
  const std::string name = uuid + ".lock";
  const UseFolder open_lock = [&](int directory, const std::string&, std::string&) {
    file_ = ::openat(directory, name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return file_ >= 0;
  };
  std::string error;
  if (!uuid.empty()) in_private_folder(open_lock, error);
  return file_ < 0 || ::flock(file_, LOCK_EX | LOCK_NB) == 0;
}

PcSampling::GpuLock::~GpuLock() {
  if (file_ < 0) return;
  ::flock(file_, LOCK_UN);  // unlock first, because a forked child may have the file too
  ::close(file_);
}

void PcSampling::GpuLock::forget() {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
}

// Makes no CUPTI call, because these contexts no longer exist.
void PcSampling::drop_destroyed() {
  std::vector<CUcontext> destroyed;
  {
    const std::lock_guard lock(next_mutex_);
    destroyed.swap(destroyed_);
  }
  for (const CUcontext context : destroyed) {
    std::erase(waiting_, context);
    if (std::erase_if(contexts_, [&](const Context& known) { return known.context == context; }) != 0)
      say("the last samples of a context are missing: it was destroyed while CUPTI returned others");
  }
}

void PcSampling::begin_waiting() {
  if (waits_.exchange(false)) watch_work(false);
  for (CUcontext context : std::exchange(waiting_, {}))
    if (std::ranges::find(contexts_, context, &Context::context) == contexts_.end()) begin(context);
}

void PcSampling::begin(CUcontext context) {
  Context made;
  made.context = context;
  std::uint32_t device = 0;
  cupti_->GetDeviceId(context, &device);
  made.device = static_cast<std::uint16_t>(device);
  const std::string on_gpu = " on GPU " + std::to_string(device);
  // CUPTI 13.0 delivers no records at all after it has refused to sample.
  if (std::ranges::find(contexts_, made.device, &Context::device) != contexts_.end())
    return say("program counters of a second context" + on_gpu + " were not sampled: a GPU samples one context at a time");
  if (!made.lock.take(device_uuid(device)))
    return say("program counters were not sampled" + on_gpu +
               ": another process of cutrace reads its counters; only one process can sample a GPU at a time");
  const CUptiResult result = enable(made);
  if (result == CUPTI_SUCCESS) return contexts_.push_back(std::move(made));
  switch (static_cast<int>(result)) {
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
      return say("program counters were not sampled" + on_gpu +
                 ": only administrators may read counters (ERR_NVGPUCTRPERM); `cutrace doctor` says what to do");
    default:
      return say("program counters of a context" + on_gpu + " were not sampled: CUPTI refused (" + cupti_->error_name(result) +
                 "), and may record nothing else either; no other tool may hold the counters of the GPU");
  }
}

CUptiResult PcSampling::enable(Context& c) {
  auto enabling = params<CUpti_PCSamplingEnableParams>(c.context);
  CUptiResult result = cupti_->PCSamplingEnable(&enabling);
  if (result != CUPTI_SUCCESS) return result;
  if (result = name_reasons(c); result == CUPTI_SUCCESS) result = configure(c);
  auto starting = params<CUpti_PCSamplingStartParams>(c.context);
  if (result == CUPTI_SUCCESS) result = cupti_->PCSamplingStart(&starting);
  if (result == CUPTI_SUCCESS) return result;
  auto disabling = params<CUpti_PCSamplingDisableParams>(c.context);
  cupti_->PCSamplingDisable(&disabling);
  return result;
}

CUptiResult PcSampling::name_reasons(Context& c) {
  std::size_t count = 0;
  auto asked = params<CUpti_PCSamplingGetNumStallReasonsParams>(c.context);
  asked.numStallReasons = &count;
  CUptiResult result = cupti_->PCSamplingGetNumStallReasons(&asked);
  if (result != CUPTI_SUCCESS) return result;
  std::vector<std::uint32_t> indices(count);
  std::vector<std::array<char, CUPTI_STALL_REASON_STRING_SIZE>> names(count);
  std::vector<char*> pointers(count);
  std::ranges::transform(names, pointers.begin(), [](auto& name) { return name.data(); });
  auto named = params<CUpti_PCSamplingGetStallReasonsParams>(c.context);
  named.numStallReasons = count;
  named.stallReasonIndex = indices.data();
  named.stallReasons = pointers.data();
  result = cupti_->PCSamplingGetStallReasons(&named);
  if (result != CUPTI_SUCCESS) return result;
  c.reasons.clear();
  c.fetched = std::make_unique<Buffer>(count);
  c.rest = std::make_unique<Buffer>(count);
  for (std::size_t i = 0; i < count; ++i) {
    names[i].back() = 0;
    std::string_view name = names[i].data();
    if (name == kLost) c.reasons[indices[i]] = {text(name), Counts::lost};
    if (!name.starts_with(kReasonPrefix)) continue;  // a count of all samples, not a stall reason
    name.remove_prefix(kReasonPrefix.size());
    const bool not_issued = name.ends_with(kNotIssued);
    if (not_issued) name.remove_suffix(kNotIssued.size());
    c.reasons[indices[i]] = {text(name), not_issued ? Counts::not_issued : Counts::samples};
  }
  return result;
}

CUptiResult PcSampling::configure(Context& c) {
  std::vector<CUpti_PCSamplingConfigurationInfo> wanted;
  const auto want = [&](CUpti_PCSamplingConfigurationAttributeType type) -> CUpti_PCSamplingConfigurationInfo& {
    CUpti_PCSamplingConfigurationInfo& info = wanted.emplace_back();
    info.attributeType = type;
    return info;
  };
  want(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_COLLECTION_MODE).attributeData.collectionModeData.collectionMode =
      CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS;
  want(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER).attributeData.samplingDataBufferData.samplingDataBuffer =
      &c.rest->data;
  want(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD).attributeData.samplingPeriodData.samplingPeriod = period_;
  // Without it, the first launches wait for up to half a second (CUPTI 13.0).
  want(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL).attributeData.enableStartStopControlData
      .enableStartStopControl = 1;
  auto configuring = params<CUpti_PCSamplingConfigurationInfoParams>(c.context);
  configuring.numAttributes = wanted.size();
  configuring.pPCSamplingConfigurationInfo = wanted.data();
  return cupti_->PCSamplingSetConfigurationAttribute(&configuring);
}

// ---- samples ----

void PcSampling::read(Context& c) {
  // The loop is bounded, because a fast program can add samples without end. The next read gets the rest.
  for (int part = 0; part < 64; ++part) {
    auto getting = params<CUpti_PCSamplingGetDataParams>(c.context);
    getting.pcSamplingData = &c.fetched->data;
    const CUptiResult result = cupti_->PCSamplingGetData(&getting);
    const std::size_t pcs = c.fetched->data.totalNumPcs;
    const bool full = result == CUPTI_ERROR_OUT_OF_MEMORY || c.fetched->data.hardwareBufferFull != 0;
    if (result == CUPTI_SUCCESS) {
      add(c, *c.fetched);
    } else if (!full) {
      return say("samples of program counters are missing: CUPTI did not return them (" + cupti_->error_name(result) +
                 "); only one process can sample a GPU at a time");
    }
    if (full) {
      say("the GPU took more samples of program counters than CUPTI could decode: take a longer period");
      const std::lock_guard lock(next_mutex_);
      next_.lost += std::max<std::uint64_t>(1, c.fetched->data.droppedSamples);
    }
    if (result != CUPTI_SUCCESS || pcs == 0) return;
  }
}

void PcSampling::end(Context& c) {
  auto stopping = params<CUpti_PCSamplingStopParams>(c.context);
  cupti_->PCSamplingStop(&stopping);
  read(c);
  c.rest->data.totalNumPcs = 0;
  auto disabling = params<CUpti_PCSamplingDisableParams>(c.context);
  if (cupti_->PCSamplingDisable(&disabling) == CUPTI_SUCCESS) add(c, *c.rest);
}

void PcSampling::add(const Context& c, Buffer& buffer) {
  std::uint64_t forgotten = 0;
  const std::size_t count = std::min<std::size_t>(buffer.data.totalNumPcs, kPcs);
  for (std::size_t i = 0; i < count; ++i) {
    const CUpti_PCSamplingPCData& pc = buffer.pcs[i];
    const Instruction* const at = instruction(pc.cubinCrc, pc.functionName, pc.pcOffset);
    const std::lock_guard lock(next_mutex_);
    for (std::size_t j = 0; j < pc.stallReasonCount; ++j) {
      const std::uint32_t index = pc.stallReason[j].pcSamplingStallReasonIndex, samples = pc.stallReason[j].samples;
      const auto reason = c.reasons.find(index);
      if (reason == c.reasons.end() || samples == 0) continue;
      const Counts what = reason->second.what;
      if (what == Counts::lost) {
        next_.lost += samples;
      } else if (at == nullptr) {
        forgotten += what == Counts::samples ? samples : 0;
      } else {
        Sum& sum = next_.sums[{at, reason->second.name, c.device}];
        (what == Counts::samples ? sum.samples : sum.not_issued) += samples;
      }
    }
  }
  const std::lock_guard lock(next_mutex_);
  next_.forgotten += forgotten;
  next_.lost += buffer.data.droppedSamples;
  buffer.data.totalNumPcs = buffer.data.droppedSamples = 0;
}

// Null when the table is full.
const Instruction* PcSampling::instruction(std::uint64_t crc, const char* function, std::uint64_t offset) {
  const auto at = static_cast<std::uint32_t>(offset);
  const std::string_view name = function != nullptr ? function : "";
  const auto known = instructions_.find({crc, name, at});
  if (known != instructions_.end()) return &known->second;
  if (instructions_.size() >= kMostInstructions) return nullptr;
  Instruction made;
  made.function = text(name);
  made.offset = at;
  const SourceLine line = lines_->find(crc, made.function.data(), offset);  // the data of a std::string are null-terminated
  made.file = text(line.file);
  made.line = line.line;
  return &instructions_.emplace(std::make_tuple(crc, made.function, at), made).first->second;
}

Feature& pc_sampling_feature() {
  static auto& feature = *new PcSampling;
  return feature;
}

}  // namespace cutrace
