// CUPTI as a source of records: subscribing, enabling, flushing, and the buffers in between.
//
// One a process, and never destroyed: CUPTI may call back until the process ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cupti_library.h"
#include "driver.h"
#include "kinds.h"
#include "options.h"
#include "pc_sampling.h"
#include "pool.h"

namespace cutrace {

class CuptiSource {
 public:
  static CuptiSource& instance();

  struct Report {
    bool active = false;
    std::vector<std::string> kinds;
    std::vector<std::string> notes;  // sentences about what cannot be recorded
  };
  // Subscribes and enables. The writer is woken whenever a buffer is complete. `before_cuda`: this is inside cuInit().
  Report attach(const Options& options, bool before_cuda);

  // Any thread of the collector but the writer: both may wait for locks inside CUPTI.
  void flush();
  // False when work that may still run was not waited for, see StreamCaptures. `is_read`: somebody reads the buffers.
  bool detach(bool at_exit, bool synchronize, void* context, const std::function<bool()>& is_read);
  const StreamCaptures& captures() const { return captures_; }

  // After detach(): why CUPTI has kept buffers with records, empty when it has not.
  std::string kept_back() const;

  // Writer thread: records that CUPTI threw away since the last call, until the end of the recording.
  std::uint64_t take_dropped();

  bool active() const { return active_.load(std::memory_order_acquire); }
  // Ids that CUPTI gives to the program's objects, 0 when it cannot tell.
  std::uint32_t stream_id(void* stream) const;
  std::uint32_t context_id(void* context) const;
  // Writer thread: what could not be enabled; not yet known while kinds wait for a context.
  std::vector<Refusal> refused_kinds() const { return enabler_.refused(); }
  const CuptiLibrary& library() const { return library_; }
  BufferPool& pool() { return pool_; }
  PcSampling& pc_sampling() { return pc_sampling_; }

  void before_fork() { captures_.before_fork(); }
  void after_fork() { captures_.after_fork(); }
  // After fork, in the child: CUPTI's state belongs to the parent and must not be touched again.
  void forget();

 private:
  static void on_request(std::uint8_t** buffer, std::size_t* size, std::size_t* records);
  static void on_complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t size, std::size_t valid);
  static void on_callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
    instance().enabler_.on_callback(domain, id);
    instance().captures_.on_callback(domain, id, data);
    instance().pc_sampling_.on_callback(domain, id, data);
  }
  bool subscribe(const Options& options, Report& report);
  bool subscribe_as_one_of_several(std::string& holder);
  void prepare(const Options& options);
  CUptiResult register_buffers();
  void enable(const Options& options, bool before_cuda, Report& report);
  void unsubscribe(const std::function<bool()>& is_read);
  void flush_all(std::uint32_t flags) { flushed_.store(library_.ActivityFlushAll(flags)); }
  void count_dropped();
  void count_last_dropped();
  template <typename Value>
  bool set_attribute(CUpti_ActivityAttribute attribute, Value value);

  CuptiLibrary library_;
  bool loaded_ = false;
  bool prepared_ = false;
  // CUPTI asks this library for the time, and names threads as the system does.
  struct Conventions {
    bool clock = false;
    bool threads = false;
  };
  Conventions conventions_;       // of this recording
  Conventions conventions_once_;  // where CUPTI serves one tool: agreed on once
  CUpti_SubscriberHandle subscriber_ = nullptr;
  Enabler enabler_;
  StreamCaptures captures_;
  BufferPool pool_;
  PcSampling pc_sampling_;
  std::atomic<bool> active_{false};
  std::atomic<CUptiResult> flushed_{CUPTI_SUCCESS};
  std::atomic<bool> counts_dropped_{false};  // from the first kind to the last flush, while the writer still reads
  std::atomic<std::uint64_t> dropped_{0};    // not yet taken
};

}  // namespace cutrace
