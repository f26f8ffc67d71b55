// Counters for the work of a CUDA context between two times.
#pragma once

#include "../collector/features/pc_sampling/source_lines.h"
#include "caches.h"
#include "launch_calls.h"
#include "session.h"

#include <compare>
#include <map>

namespace cutrace {

class ContextCounter {
 public:
  // `context` must be current on this thread.
  explicit ContextCounter(CUcontext context) : context_(context), device_(current_device()) {}
  virtual ~ContextCounter() = default;
  ContextCounter(const ContextCounter&) = delete;
  ContextCounter& operator=(const ContextCounter&) = delete;

  // On failure, these functions return false with a message in error().
  virtual bool open() = 0;
  virtual bool begin() = 0;
  // After the work: returns the values of all work, if the counter has values.
  virtual bool end(const Replay& replay, std::vector<double>& values) = 0;
  const std::string& error() const { return error_; }
  std::uint32_t device() const { return device_; }
  // The state of the caches when the work started.
  virtual Caches caches() const { return Caches::unknown; }

 protected:
  // Calls a function. An older library refuses the size of a struct that has grown. `older` is the previous size, 0 for a
  // struct that has not grown.
  template <typename Function, typename Params>
  bool call(Function function, const char* name, Params& params, std::size_t older = 0) {
    CUptiResult result = function(&params);
    if (result == CUPTI_ERROR_INVALID_PARAMETER && older != 0) {
      params.structSize = older;
      result = function(&params);
    }
    if (result == CUPTI_SUCCESS) return true;
    error_ = std::string("cupti") + name + " failed with " + session.cupti.error_name(result);
    return false;
  }
#define CUTRACE_CALL(name, ...) call(session.name, #name, __VA_ARGS__)
  // Initialises CUPTI's profiler. Returns the name of the device's chip, null on failure.
  const char* initialize();

  const CUcontext context_;
  const std::uint32_t device_;
  std::string error_;
};

// The zeroed struct of a function, with its size set.
#define CUTRACE_PARAMS(type) sized<CUpti_##type##_Params>(CUpti_##type##_Params_STRUCT_SIZE)
template <typename Params>
Params sized(std::size_t size) {
  Params params{};
  params.structSize = size;
  return params;
}

// Hardware metrics, either of a kernel, or of all work of the context between two times. A kernel runs once per pass, and its
// writes are undone between passes. Work between two times gets one pass.
//
// From 13.4 on, CUPTI can flush the caches before each pass of a kernel that it replays. Before that, this class replays the
// kernel: the launch of the program is the first pass, and is made again for each further pass.
class RangeProfiler final : public ContextCounter {
 public:
  enum class Of { kernel, range };
  RangeProfiler(CUcontext context, Of of) : ContextCounter(context), of_(of), sweep_(context), memory_(context) {}
  ~RangeProfiler() override;

  bool open() override;
  bool begin() override;
  bool end(const Replay& replay, std::vector<double>& values) override;
  Caches caches() const override { return caches_; }

 private:
  bool enable();
  void choose_replay();
  bool configure();
  bool start();
  bool stop(bool& all_passes);
  bool start_flushed();
  bool start_first_pass();
  bool further_pass(const Replay& replay, bool& all_passes);
  bool finish_passes(const Replay& replay);

  const Of of_;
  Caches caches_ = Caches::unknown;  // of the last launch or range
  bool cupti_flushes_ = false;
  bool replays_itself_ = false;  // false: CUPTI replays
  std::size_t passes_ = 1;
  CacheSweep sweep_;
  Checkpoint memory_;
  std::vector<const char*> names_;  // of metrics
  CUpti_Profiler_Host_Object* host_ = nullptr;
  CUpti_RangeProfiler_Object* profiler_ = nullptr;
  std::vector<std::uint8_t> availability_, config_, image_;
};

struct InstructionKey {
  std::uint32_t device = 0, crc = 0;
  std::string function;
  std::uint32_t offset = 0;
  auto operator<=>(const InstructionKey&) const = default;
};
struct InstructionSum {
  SourceLine source;
  std::vector<std::uint64_t> values;  // by metric
};
// Sums over consecutive launches of a kernel.
using InstructionSums = std::map<InstructionKey, InstructionSum>;

// Metrics of single instructions. CUPTI patches the code of a kernel, and the patched code counts.
//
// CUPTI 13.0 counts only the first kernel that is launched after SetConfig and Enable, and a process can read the counts only
// once. So this class counts consecutive launches of one kernel and reads the sums after the last one.
class InstructionCounter final : public ContextCounter {
 public:
  InstructionCounter(CUcontext context, SourceLines& lines, InstructionSums& sums)
      : ContextCounter(context), lines_(lines), sums_(sums) {}
  ~InstructionCounter() override;

  bool open() override;
  bool begin() override;
  bool end(const Replay& replay, std::vector<double>& values) override;

 private:
  bool synchronize();
  bool read();

  SourceLines& lines_;
  InstructionSums& sums_;
  std::vector<CUpti_SassMetrics_Config> configuration_;
  bool configured_ = false;
  std::map<std::uint64_t, std::size_t> places_;  // of metrics, by CUPTI's id
};

}  // namespace cutrace
