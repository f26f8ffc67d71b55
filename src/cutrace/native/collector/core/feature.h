// The interface between the core of the collector and its features.
//
// A feature lives as long as the process and works on the program's threads and on the flusher. Its decoder belongs to one
// recording and works on the writer's thread. The two share the rings (rings.h) and nothing else that needs a lock.
// features/features.cpp lists all features; the core does not know their names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cuda/callbacks.h"
#include "capture.h"
#include "file_keeper.h"
#include "kinds.h"
#include "options.h"
#include "process_info.h"
#include "rings.h"
#include "watcher.h"

namespace cutrace {

// The objects that a decoder may use. They outlive the decoder.
struct DecoderContext {
  const Options& options;
  const CuptiLibrary& cupti;
  Capture& capture;
  ThreadNames& threads;
  Watcher& watcher;
  Notes& notes;
};

// The writer's thread, in one recording.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // An event of one of the types that this decoder was registered for. `bytes` starts with an EventHead.
  virtual void event(const Ring& /*ring*/, const std::uint8_t* /*bytes*/) {}
  // All events of a ring are read. `ended`: its thread has ended, and the ring will serve another thread.
  virtual void ring_is_read(Ring& /*ring*/, bool /*ended*/) {}
  // The name of a kernel's record; `given` is CUPTI's. Called for each record of a kernel if names_kernels().
  virtual bool names_kernels() const { return false; }
  virtual const char* kernel_name(const CUpti_ActivityKernel9& /*record*/, const char* given) { return given; }
  // Completes the launch configuration of a kernel's record. `name` is the name of the kernel. Called for each record of a kernel
  // if completes_launches().
  virtual bool completes_launches() const { return false; }
  virtual void complete_launch(const CUpti_ActivityKernel9& /*record*/, std::string_view /*name*/, rows::Launches& /*launch*/) {}
  // Before the tables are written: every flush_ms, and at the end of a file (`last`: of the recording).
  virtual void write_out(bool /*last*/) {}
  virtual std::size_t memory() const { return 0; }
};

// The arguments for a feature at the start of a recording of GPU activity. Attaching thread only.
struct AttachContext {
  const Options& options;
  const CuptiLibrary& cupti;
  Callbacks& callbacks;
  const Enabler& kinds;
  Notes& notes;
  std::vector<Refusal>& refused;  // output: calls that CUPTI refuses to this feature
  bool before_cuda;  // inside cuInit()
};

class Feature : public CallbackHandler {
 public:
  void on_callback(CUpti_CallbackDomain, CUpti_CallbackId, const void*) noexcept override {}
  // The decoder of a recording that starts, null when the options ask for none.
  virtual std::unique_ptr<Decoder> decoder(const DecoderContext&) { return nullptr; }
  // The keeper of a recording's files, null when the options ask for none.
  virtual std::unique_ptr<FileKeeper> keeper(const KeeperContext&) { return nullptr; }
  // The types of events that the decoder takes.
  virtual std::span<const EventType> events() const { return {}; }
  // CUPTI is loaded. Called once per process, before any callback.
  virtual void cupti_loaded(const CuptiLibrary&, Callbacks&) {}
  // CUPTI has a subscriber, and no kind is enabled yet. Watch callbacks here, so that each record has its callback. No callback
  // comes before the first watch.
  virtual void attach(const AttachContext&) {}
  // The kinds are enabled, or will be when there is a context.
  virtual void kinds_enabled(const AttachContext&) {}
  // The flusher, at each flush; may block in CUPTI.
  virtual void flush() {}
  // The flusher, before CUPTI's kinds are disabled and the subscriber unsubscribes. At exit the subscriber stays.
  virtual void detach(bool /*at_exit*/) {}
  // The program exits, and its recording has ended.
  virtual void at_exit() {}
  // Whether cutrace may wait for the work of this context. Any thread.
  virtual bool may_wait_for(CUcontext) const { return true; }
  // Whether CUPTI may be finalised in this process.
  virtual bool may_finalize() const { return true; }
  // Around fork(). In the child CUPTI must not be called again.
  virtual void before_fork() {}
  virtual void after_fork_in_parent() {}
  virtual void after_fork_in_child() {}

 protected:
  ~Feature() = default;
};

// All features, in the order in which their handlers are called. They are never destroyed.
std::span<Feature* const> features();

}  // namespace cutrace
