// Samples of program counters: the instructions of warps, and the reasons why they waited there.
//
// Kernels still run concurrently (continuous mode). A context is sampled from when its activity kinds are enabled: CUPTI 13.0
// refuses to record kernels of a context that it samples already.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cupti_library.h"
#include "source_lines.h"

namespace cutrace {

// An instruction, and its line in the source where the cubin says it. Lives as long as the process.
struct Instruction {
  std::string_view function;  // mangled
  std::string_view file;      // empty when it is not known
  std::uint32_t offset = 0;   // bytes
  std::uint32_t line = 0;     // from 1, 0 when it is not known
};

// The number of samples of warps at an instruction that waited for one reason.
struct PcSamples {
  const Instruction* at = nullptr;
  std::string_view stall;
  std::uint16_t device = 0;
  std::uint64_t samples = 0;
  std::uint64_t not_issued = 0;  // of these: while the scheduler issued nothing
};

class PcSampling {
 public:
  // The samples between two times (ns), and notes about them.
  struct Taken {
    std::uint64_t start = 0, end = 0;
    std::vector<PcSamples> samples;
    std::uint64_t lost = 0;       // samples that the GPU had no room for
    std::uint64_t forgotten = 0;  // samples that the collector had no room for
    std::vector<std::string> notes;
  };

  // Begins a recording, in which contexts are sampled every 2^period cycles. The subscriber's callback must then call
  // on_callback(). `contexts` exist already. False and a sentence in `error` when this CUPTI cannot sample.
  bool start(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber, std::uint32_t period,
             std::vector<CUcontext> contexts, std::string& error);
  // The program's threads, inside CUPTI's callbacks; other calls are passed over. `recorded`: activity kinds are enabled.
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data, bool recorded) noexcept;
  // Begins to sample contexts that wait for it, if activity kinds are enabled, and fetches the samples that CUPTI has. Any
  // thread of the collector but the writer: it may wait inside CUPTI.
  void read(bool recorded);
  // Fetches the last samples and ends sampling. Likewise.
  void stop();
  // After fork, in the child.
  void forget() { on_.store(false); }

  bool on() const { return on_.load(); }
  // Writer thread: the sums since the last time. Nothing before an interval is over, unless it is the `last` time.
  Taken take(bool last);

 private:
  static constexpr std::size_t kPcs = 4096;            // that CUPTI hands out at once
  static constexpr std::size_t kMostInstructions = 1 << 16;

  // Where CUPTI puts samples.
  struct Buffer {
    explicit Buffer(std::size_t reasons);
    CUpti_PCSamplingData data{};
    std::vector<CUpti_PCSamplingPCData> pcs;
    std::vector<CUpti_PCSamplingStallReason> reasons;
  };
  enum class Counts { samples, not_issued, lost };
  struct Reason {
    std::string_view name;
    Counts what = Counts::samples;
  };
  // The file that one process of a user locks while it reads the counters of a GPU, as cutrace/metrics/counting.py does.
  class GpuLock {
   public:
    GpuLock() = default;
    GpuLock(GpuLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
    GpuLock& operator=(GpuLock&& other) noexcept {
      std::swap(file_, other.file_);
      return *this;
    }
    ~GpuLock();
    // False when another process has it. A file that cannot be opened locks nobody out.
    bool take(const std::string& uuid);

   private:
    int file_ = -1;
  };
  struct Context {
    GpuLock lock;
    CUcontext context = nullptr;
    std::uint16_t device = 0;
    std::map<std::uint32_t, Reason> reasons;  // by CUPTI's index
    std::unique_ptr<Buffer> fetched;          // by a read
    std::unique_ptr<Buffer> rest;             // what CUPTI has left at the end
  };
  struct Sum {
    std::uint64_t samples = 0, not_issued = 0;
  };

  // Under control_.
  void begin_waiting();
  void begin(CUcontext context);
  CUptiResult enable(Context& context);
  CUptiResult configure(Context& context);
  CUptiResult name_reasons(Context& context);
  void read(Context& context);
  void end(Context& context);
  void add(const Context& context, Buffer& buffer);
  const Instruction* instruction(std::uint64_t crc, const char* function, std::uint64_t offset);
  std::string_view text(std::string_view given) { return *texts_.emplace(given).first; }
  void say(const std::string& sentence);

  const CuptiLibrary* cupti_ = nullptr;
  std::atomic<bool> on_{false};
  std::atomic<bool> waits_{false};  // there are waiting contexts
  std::uint32_t period_ = 0;

  std::mutex control_;  // held across calls of CUPTI
  std::vector<CUcontext> waiting_;
  std::vector<Context> contexts_;
  std::unique_ptr<SourceLines> lines_;
  std::set<std::string, std::less<>> texts_;
  std::map<std::tuple<std::uint64_t, std::string_view, std::uint32_t>, Instruction> instructions_;
  std::set<std::string> said_;

  std::mutex sums_mutex_;  // held for a moment
  std::map<std::tuple<const Instruction*, std::string_view, std::uint16_t>, Sum> sums_;
  Taken next_;
};

}  // namespace cutrace
