// PC samples: the instructions of warps, and their stall reasons.
//
// Kernels still run concurrently (continuous mode). Sampling of a context starts after its activity kinds are enabled, because
// CUPTI 13.0 refuses to record kernels of a context that it already samples.
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

#include "core/feature.h"
#include "core/kinds.h"
#include "source_lines.h"

namespace cutrace {

// An instruction, and its source line if the cubin has line information. Lives at least as long as the recording.
struct Instruction {
  std::string_view function;  // mangled
  std::string_view file;      // empty when unknown
  std::uint32_t offset = 0;   // bytes
  std::uint32_t line = 0;     // from 1, 0 when unknown
};

class PcSampling final : public Feature {
 public:
  // The number of samples at an instruction of a device with one stall reason.
  struct Sum {
    std::uint64_t samples = 0;
    std::uint64_t not_issued = 0;  // samples in cycles without an issued instruction
  };
  // The samples between two times (ns), and notes about them.
  struct Taken {
    std::uint64_t start = 0, end = 0;
    std::map<std::tuple<const Instruction*, std::string_view, std::uint16_t>, Sum> sums;  // by instruction, reason, device
    std::uint64_t lost = 0;       // samples dropped by the GPU, because its buffer was full
    std::uint64_t forgotten = 0;  // samples dropped by the collector for lack of room
    std::vector<std::string> notes;
  };

  std::unique_ptr<Decoder> decoder(const DecoderContext& context) override;
  // Samples the existing contexts and later contexts.
  void kinds_enabled(const AttachContext& context) override;
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override;
  // Samples waiting contexts, once activity kinds are enabled, and fetches samples from CUPTI.
  void flush() override;
  // Fetches the last samples and ends sampling.
  void detach(bool at_exit) override;
  void before_fork() override { next_mutex_.lock(); }
  void after_fork_in_parent() override { next_mutex_.unlock(); }
  void after_fork_in_child() override;

  // Writer thread: the sums since the previous call. Empty until an interval is over, unless this is the `last` call.
  Taken take(bool last);

 private:
  static constexpr std::size_t kPcs = 4096;            // largest number that CUPTI returns at once
  static constexpr std::size_t kMostInstructions = 1 << 16;

  // The memory into which CUPTI writes samples.
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
  // A file lock, shared with extras/hardware/counting.py: one process of a user reads the counters of a GPU at a time.
  class GpuLock {
   public:
    GpuLock() = default;
    GpuLock(GpuLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
    GpuLock& operator=(GpuLock&& other) noexcept {
      std::swap(file_, other.file_);
      return *this;
    }
    ~GpuLock();
    // False when another process has the lock. True also when the file cannot be opened.
    bool take(const std::string& uuid);
    // After fork, in the child: closes the file, because the child would otherwise hold the parent's lock until it ends.
    void forget();

   private:
    int file_ = -1;
  };
  struct Context {
    GpuLock lock;
    CUcontext context = nullptr;
    std::uint16_t device = 0;
    std::map<std::uint32_t, Reason> reasons;  // by CUPTI's index
    std::unique_ptr<Buffer> fetched;          // for reads
    std::unique_ptr<Buffer> rest;             // bytes for the samples that CUPTI returns at the end
  };

  // Under control_.
  bool start(const AttachContext& context);
  bool on() const { return on_.load(); }
  // Whether the activity kinds of the GPU are enabled: contexts are sampled only then.
  bool recorded() const { return kinds_->settled(); }
  void watch_work(bool on);
  void drop_destroyed();
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
  Callbacks* callbacks_ = nullptr;
  const Enabler* kinds_ = nullptr;
  std::atomic<bool> on_{false};
  std::atomic<bool> waits_{false};  // waiting_ is not empty
  std::uint32_t period_ = 0;

  std::mutex control_;  // held across calls of CUPTI
  std::vector<CUcontext> waiting_;
  std::vector<Context> contexts_;
  std::unique_ptr<SourceLines> lines_;
  std::set<std::string, std::less<>> texts_;
  std::map<std::tuple<std::uint64_t, std::string_view, std::uint32_t>, Instruction> instructions_;
  std::set<std::string> said_;

  std::mutex next_mutex_;  // held for a moment
  Taken next_;
  std::vector<CUcontext> destroyed_;  // contexts destroyed while control_ was locked
};

Feature& pc_sampling_feature();

}  // namespace cutrace
