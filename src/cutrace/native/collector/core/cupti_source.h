// CUPTI as a source of records: subscribing, enabling, flushing, and buffers.
//
// A process has one CuptiSource. It is never destroyed, because CUPTI may call back until the process ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cuda/cupti_library.h"
#include "cuda/callbacks.h"
#include "kinds.h"
#include "options.h"
#include "pool.h"
#include "process_info.h"

namespace cutrace {

class CuptiSource {
 public:
  static CuptiSource& instance();
  CuptiSource();

  // Subscribes and enables kinds. Complete buffers wake the writer. `before_cuda`: inside cuInit(). Returns the kinds that are
  // recorded, nullopt when CUPTI records nothing. Notes name the unrecordable data.
  std::optional<KindSet> attach(Options options, bool before_cuda, Notes& notes);

  // Any thread of the collector except the writer: flush() and detach() may wait for locks inside CUPTI.
  void flush();
  // Waits for the work of the devices' primary contexts and of `context`, except where a feature forbids it
  // (Feature::may_wait_for()). False when it did not wait for all work.
  static bool synchronize(void* context);
  // False when it did not wait for all work. is_read() tells whether a writer still reads the buffers.
  bool detach(bool at_exit, bool synchronize, void* context, const std::function<bool()>& is_read);
  // For the flusher, in a recording of windows. resume() enables the kinds at the start of a window and returns the kinds that
  // work. suspend() disables them at the end of the window. It has the arguments and the result of detach().
  KindSet resume(bool before_cuda);
  bool suspend(bool wait, void* context);

  // CUPTI's error at the last flush, empty for none.
  std::string flush_error() const;

  // Writer thread: a record of graph work was read.
  void note_graph_work() { can_finalize_.store(false); }
  // Writer thread: the number of records that CUPTI has dropped since the last call.
  std::uint64_t take_dropped();

  bool active() const { return active_.load(std::memory_order_acquire); }
  // CUPTI's ids of the program's objects, 0 when unknown.
  std::uint32_t stream_id(void* stream) const;
  std::uint32_t context_id(void* context) const;
  // Writer thread: the refused kinds and calls; empty while kinds wait for a context.
  std::vector<Refusal> refused_kinds() const;
  const CuptiLibrary& library() const { return library_; }
  BufferPool& pool() { return pool_; }

  // After fork, in the child: CUPTI's state belongs to the parent and must not be used again.
  void forget();

 private:
  static void on_request(std::uint8_t** buffer, std::size_t* size, std::size_t* records);
  static void on_complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t size, std::size_t valid);
  static void on_callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
    instance().callbacks_.dispatch(domain, id, data);
  }
  bool load(const Options& options, Notes& notes);
  CUptiResult subscribe_patiently(bool before_cuda);
  bool subscribe(const Options& options, bool before_cuda, Notes& notes);
  bool subscribe_as_one_of_several(std::string& holder);
  void prepare(const Options& options);
  CUptiResult register_buffers();
  std::optional<KindSet> enable(const Options& options, bool before_cuda, Notes& notes);
  bool take_back_buffers(bool at_exit);
  void unsubscribe(const std::function<bool()>& is_read);
  bool can_finalize() const;
  void flush_all(std::uint32_t flags) { flushed_.store(library_.ActivityFlushAll(flags)); }
  void count_dropped();
  void count_last_dropped();
  template <typename Value>
  bool set_attribute(CUpti_ActivityAttribute attribute, Value value);

  CuptiLibrary library_;
  bool loaded_ = false;
  bool finalize_ = false;  // CUPTI is finalised after this recording
  bool served_ = false;    // CUPTI has served a recording
  bool forgotten_ = false;  // CUPTI has served a recording of the process that forked this one
  bool prepared_ = false;  // the settings of prepare() are made
  // Whether CUPTI uses this library's clock, and thread ids of the system.
  struct Conventions {
    bool clock = false;
    bool threads = false;
  };
  Conventions conventions_;       // in this recording
  Conventions conventions_once_;  // in recordings in which CUPTI serves one tool; set once per process
  CUpti_SubscriberHandle subscriber_ = nullptr;
  Callbacks callbacks_;
  Enabler enabler_;
  std::vector<Refusal> refused_;      // written by enable(), before a writer uses CUPTI
  bool traced_whole_graphs_ = false;  // a recording had graph=graph
  BufferPool pool_;
  std::atomic<bool> active_{false};
  std::atomic<CUptiResult> flushed_{CUPTI_SUCCESS};
  std::atomic<bool> can_finalize_{true};     // false from the first possible record of graph work until the process ends
  std::atomic<bool> counts_dropped_{false};  // true from the first enabled kind to the last flush
  std::atomic<std::uint64_t> dropped_{0};    // counted, but not yet returned to the writer
};

}  // namespace cutrace
