// A fake CUPTI: the functions that the collector uses, with records and errors chosen by a test.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/cupti_library.h"

extern "C" {
// Before the collector attaches.
void fake_set_version(std::uint32_t version);     // also determines the sizes of records
void fake_fail_subscribe(int result);             // what cuptiSubscribe returns
void fake_can_share(bool on);                     // whether cuptiSubscribe_v2 can serve several tools
void fake_refuse_kind(int kind, int result);      // what cuptiActivityEnable returns for this kind
void fake_set_flush_delay(unsigned milliseconds);  // how long cuptiActivityFlushAll takes
void fake_delay_enabling(unsigned milliseconds);     // how long the kind of kernels takes to be enabled
void fake_delay_subscribing(unsigned milliseconds);  // how long cuptiSubscribe takes
void fake_deliver_late_and_reversed(bool on);     // full buffers wait for a flush, the newest comes first
void fake_hold_buffer(bool on);  // flushes leave the calling thread's buffer, as if work in it were running
void fake_fail(const char* function, int result);  // this function now only returns this result
int fake_failure(const char* function);  // its current result: from fake_fail() or FAKE_CUPTI_FAILURES=Function:result,...
std::uint32_t fake_version();
// The fake GPU is given work, for hardware metrics (fake_profiler.cpp). False when a range replays it: no record is delivered.
void fake_sweep();
bool fake_counts();
bool fake_ran(unsigned kernels, std::uint64_t read, std::uint64_t written, std::uint64_t busy);
void fake_executed(const char* function, std::uint64_t warps, void* context);  // the same, for metrics of instructions
void fake_module(const char* function, const char* cubin);       // the module that the function runs from
void fake_slow_callbacks(unsigned microseconds);   // how long CUPTI takes before and after it calls for buffers
void fake_reenter(bool on);         // on a completed buffer CUPTI requests another, which it returns unused
void fake_names_expire(bool on);    // names of kernels are freed when their buffer has been read

// Appends a record to the calling thread's buffer, if its kind (for an API call: its callback id) is enabled. Only the
// first bytes need to be given: the rest of the version's struct is zero. True when it went into a buffer.
bool fake_record(const void* record, std::size_t size);
// An API call of the calling thread starts and gets its number, and ends with its record. CUPTI decides at the start whether it
// records the call, which fake_begin_call() returns, and a flush leaves it the thread's buffer until the end.
bool fake_begin_call(int domain, std::uint32_t callback, std::uint32_t* correlation);
void fake_end_call(const void* record, std::size_t size);
std::uint64_t fake_now();  // on the clock that the collector registered
std::uint32_t fake_next_correlation();
// cudaLaunchKernel and its kernel. `unknown_end` makes the kernel's end 0.
bool fake_launch(const char* name, std::uint32_t grid, std::uint32_t stream, bool unknown_end);
// What the driver does when the program makes a context: the beginning of a driver call, a resource callback, its end.
void fake_create_context();
// A context of device 0 is made or destroyed, as resource callbacks tell.
void fake_context(std::uintptr_t context, bool made);
bool fake_kernels_were_enabled_inside_context_creation();
// A module with one function: loads it, launches it by cuLaunchKernel, adds it to a graph, unloads the module. A function has
// the lowest free handle, as with the driver, and from 13.0 to 13.3 its records have the name that the handle had first.
std::uintptr_t fake_load_function(const char* name);
std::uint32_t fake_launch_function(std::uintptr_t function);  // returns the correlation id
std::uint64_t fake_graph_add_function(std::uint32_t graph, std::uintptr_t function, bool captured);
void fake_graph_set_function(std::uint32_t exec, std::uint64_t node, std::uintptr_t function);  // of an executable graph
void fake_graph_update(std::uint32_t exec, std::uint64_t node, std::uintptr_t function);  // by cuGraphExecUpdate
void fake_unload_function(std::uintptr_t function);
// For the fake driver: the name of a function, and the function of a node, by their handles; null and 0 when there is none.
const char* fake_function_name(std::uintptr_t function);
std::uintptr_t fake_node_function(std::uintptr_t node);
void fake_load_module();                       // tells of a module, as the driver does before a module's first kernel
void fake_unload_module();
// A module with this number and cubin is loaded into a context, or will be unloaded. The cubin's memory goes after the callback.
void fake_module_loaded(std::uint32_t module, std::uintptr_t context, const void* cubin, std::size_t size);
void fake_module_unloading(std::uint32_t module, std::uintptr_t context);
// CUDA graphs. They have numbers and their nodes ids, as in CUPTI 13.0. Each change is reported on the calling thread.
std::uint32_t fake_graph();
// A kernel, or a fill (`kernel` null); returns its id. 0: there is no such graph.
std::uint64_t fake_graph_add(std::uint32_t graph, const char* kernel);
void fake_graph_add_child(std::uint32_t graph, std::uint32_t child);
// A conditional node with a body; returns the body's number.
std::uint32_t fake_graph_add_conditional(std::uint32_t graph);
std::uint32_t fake_graph_clone(std::uint32_t graph);
std::uint32_t fake_graph_instantiate(std::uint32_t graph);
// The nodes that a replay of an executable graph runs, in their order: sets up to `most` ids and names, returns the number.
std::uint32_t fake_graph_nodes(std::uint32_t exec, std::uint64_t* ids, const char** kernels, std::uint32_t most);
// cudaGraphLaunch and its work.
void fake_graph_replay(std::uint32_t exec, std::uint32_t stream);
// PC sampling (fake_pc_sampling.cpp).
void fake_sample(const char* kernel);        // a kernel has run, which fake_record() says by itself
void fake_overflow(std::uint64_t lost);      // the next fetch finds a full buffer and no samples
void fake_fetch_takes(unsigned milliseconds);
void fake_destroy_sampled();                 // all contexts, and CUPTI forgets them
void fake_drop_samples(std::uint32_t lost);  // the GPU says that it had no room for so many
unsigned fake_sampled_contexts();
std::uint32_t fake_sampling_period();        // as it was last configured
void fake_load_cubin(const char* cubin);       // the same of this one: see fake_profiler.cpp
void fake_have_context(std::uint32_t id);  // a context from before CUPTI was attached
void fake_enter_call(int domain, std::uint32_t callback);  // tells of a call's beginning or end
void fake_set_correlation(std::uint32_t correlation);  // of the calls that this thread tells of with CUPTI's data
// The beginning of a call (`result` null) or its end, with CUPTI's data but without parameters.
void fake_tell_call(int domain, std::uint32_t callback, const int* result);
// A call about a stream from beginning to end, as the subscriber hears of it.
void fake_stream_call(int domain, std::uint32_t callback, void* stream, void* context, int result);
// A launch of `kernel`, at its beginning (`result` null) or at its end, as the subscriber hears of it. `parameters` is what
// CUPTI has in functionParams.
void fake_launch_call(std::uint32_t callback, const void* parameters, const char* kernel, void* context, const int* result);
// A call of the driver, at its beginning (`result` null) or at its end, as the subscriber hears of it.
void fake_driver_call(std::uint32_t callback, std::uint32_t correlation, const void* parameters, void* context, const int* result);
unsigned fake_callbacks();                     // how often the subscriber was called
void fake_drop(std::size_t records);  // what cuptiActivityGetNumDroppedRecords will report
void fake_drop_at_unsubscribe(std::size_t records);

bool fake_is_enabled(int kind);
bool fake_call_is_enabled(int domain, std::uint32_t callback);
unsigned fake_subscribers();
unsigned fake_stale_calls();                      // calls for a subscriber that has unsubscribed
unsigned fake_subscription_attempts();            // how often somebody has tried to subscribe so far
unsigned fake_subscriptions();                    // how many there have been so far
unsigned fake_finalized();                        // how often cuptiFinalize() succeeded
void fake_on_flush(void (*hook)(bool forced));    // called at the beginning of each cuptiActivityFlushAll
void fake_on_dump(void (*hook)(int kind));        // called by cuptiActivityEnableAndDump, to report what there is
unsigned fake_flushes();  // calls of cuptiActivityFlushAll
std::uint64_t fake_refused_requests();  // requests for buffers that were refused
const char* fake_path();
}

inline constexpr std::uint32_t kFakeLaunchKernel = 211;  // its callback id in the runtime domain
inline constexpr std::uint32_t kFakeMemcpyAsync = 41;
inline constexpr std::uint32_t kFakeGraphLaunch = 311;
inline constexpr std::uint32_t kFakeGetDevice = 17;      // a query, which api=launch leaves out
inline constexpr std::uint32_t kFakeRetainContext = 386;  // cuDevicePrimaryCtxRetain
inline constexpr std::uint32_t kFakeDriverLaunch = 307;  // cuLaunchKernel
inline constexpr std::uint32_t kFakeAddKernelNode = 689;    // cuGraphAddKernelNode_v2
inline constexpr std::uint32_t kFakeSetKernelNode = 692;    // cuGraphExecKernelNodeSetParams_v2
inline constexpr std::uint32_t kFakeUpdateExec = 696;       // cuGraphExecUpdate_v2
inline constexpr std::uint32_t kFakeBeginCapture = 539;  // cuStreamBeginCapture_v2
inline constexpr std::uint32_t kFakeEndCapture = 497;
inline constexpr std::uint32_t kFakeDestroyStream = 326;
inline constexpr std::uint32_t kFakeProfilerStart = 171;  // cudaProfilerStart
inline constexpr std::uint32_t kFakeProfilerStop = 172;
inline constexpr std::uint32_t kFakeDriverProfilerStart = 308;  // cuProfilerStart
inline constexpr std::uint32_t kFakeDriverProfilerStop = 309;
inline constexpr std::uint32_t kFakeDriverGetVersion = 2;
inline constexpr std::uint32_t kFakeDeviceReset = 164;
inline constexpr std::uint32_t kFakeLinkComplete = 365;
