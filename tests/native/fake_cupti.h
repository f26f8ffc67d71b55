// A fake CUPTI with the functions that the collector uses. A test chooses records and errors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/cupti_library.h"

extern "C" {
// Call these functions before the collector attaches.
void fake_set_version(std::uint32_t version);     // also determines the sizes of records
void fake_fail_subscribe(int result);             // the result of cuptiSubscribe
void fake_can_share(bool on);                     // whether cuptiSubscribe_v2 can serve several tools
void fake_refuse_kind(int kind, int result);      // the result of cuptiActivityEnable for this kind
void fake_set_flush_delay(unsigned milliseconds);  // duration of cuptiActivityFlushAll
void fake_delay_enabling(unsigned milliseconds);     // time to enable the kind of kernels
void fake_delay_subscribing(unsigned milliseconds);  // duration of cuptiSubscribe
void fake_deliver_late_and_reversed(bool on);     // full buffers wait for a flush, which delivers the newest first
void fake_hold_buffer(bool on);  // flushes leave the calling thread's buffer, as if work in it were running
void fake_fail(const char* function, int result);  // this function only returns this result from now on
int fake_failure(const char* function);  // its current result: from fake_fail() or FAKE_CUPTI_FAILURES=Function:result,...
std::uint32_t fake_version();
// Gives work to the fake GPU, for hardware metrics (fake_profiler.cpp). False when a range replays the work, and then no record
// is delivered.
void fake_sweep();
bool fake_counts();
bool fake_ran(unsigned kernels, std::uint64_t read, std::uint64_t written, std::uint64_t busy);
// gives work to the fake GPU, for metrics of instructions
void fake_executed(const char* function, std::uint64_t warps, void* context);
void fake_module(const char* function, const char* cubin);       // the module of the running function
void fake_slow_callbacks(unsigned microseconds);   // CUPTI's time before and after a request for a buffer
void fake_reenter(bool on);         // after a completed buffer, CUPTI requests another one and returns it unused
void fake_names_expire(bool on);    // names of kernels are freed after their buffer was read

// Appends a record to the calling thread's buffer, if its kind (or the callback id of an API call) is enabled. The record may be
// shorter than the version's struct; the rest is zero. True when a buffer has the record.
bool fake_record(const void* record, std::size_t size);
// An API call of the calling thread. fake_begin_call() gives it a number, and its end adds its record. CUPTI decides at the start
// whether it records the call; fake_begin_call() returns the decision. A flush leaves the thread's buffer in CUPTI until the end.
bool fake_begin_call(int domain, std::uint32_t callback, std::uint32_t* correlation);
void fake_end_call(const void* record, std::size_t size);
std::uint64_t fake_now();  // on the clock that the collector registered
std::uint32_t fake_next_correlation();
// cudaLaunchKernel and its kernel. `unknown_end` makes the kernel's end 0.
bool fake_launch(const char* name, std::uint32_t grid, std::uint32_t stream, bool unknown_end);
// The driver's actions for a new context: the start of a driver call, a resource callback, the end of the call.
void fake_create_context();
// Reports a made or destroyed context of device 0 by a resource callback.
void fake_context(std::uintptr_t context, bool made);
bool fake_kernels_were_enabled_inside_context_creation();
// A module with one function: loads it, launches it by cuLaunchKernel, adds it to a graph, unloads the module. A function gets
// the lowest free handle, as with the driver. From 13.0 to 13.3 its records have the first name of the handle.
std::uintptr_t fake_load_function(const char* name);
std::uint32_t fake_launch_function(std::uintptr_t function);  // returns the correlation id
std::uint64_t fake_graph_add_function(std::uint32_t graph, std::uintptr_t function, bool captured);
void fake_graph_set_function(std::uint32_t exec, std::uint64_t node, std::uintptr_t function);  // of an executable graph
void fake_graph_update(std::uint32_t exec, std::uint64_t node, std::uintptr_t function);  // by cuGraphExecUpdate
void fake_unload_function(std::uintptr_t function);
// For the fake driver: the name of a function, and the function of a node, by their handles. Null and 0 for unknown handles.
const char* fake_function_name(std::uintptr_t function);
std::uintptr_t fake_node_function(std::uintptr_t node);
void fake_load_module();                       // reports a module, as the driver does before a module's first kernel
void fake_unload_module();
// Reports that a module with this number and cubin was loaded into a context, or will be unloaded. The cubin's memory is freed
// after the callback.
void fake_module_loaded(std::uint32_t module, std::uintptr_t context, const void* cubin, std::size_t size);
void fake_module_unloading(std::uint32_t module, std::uintptr_t context);
// CUDA graphs. Graphs have numbers and nodes have ids, as in CUPTI 13.0. Each change is reported on the calling thread.
std::uint32_t fake_graph();
// Adds a kernel, or a fill (`kernel` null). Returns its id, or 0 for an unknown graph.
std::uint64_t fake_graph_add(std::uint32_t graph, const char* kernel);
void fake_graph_add_child(std::uint32_t graph, std::uint32_t child);
// Adds a conditional node with a body. Returns the body's number.
std::uint32_t fake_graph_add_conditional(std::uint32_t graph);
std::uint32_t fake_graph_clone(std::uint32_t graph);
std::uint32_t fake_graph_instantiate(std::uint32_t graph);
// The nodes that a replay of an executable graph runs, in order. Sets up to `most` ids and names, and returns the number.
std::uint32_t fake_graph_nodes(std::uint32_t exec, std::uint64_t* ids, const char** kernels, std::uint32_t most);
// What CUPTI records of a replay of an executable graph. It traces the graph as it did when the graph was instantiated: it records
// nothing if that has changed since, except that 13.0 to 13.4 record nodes of a graph that was traced as a whole before. A launch
// of a graph that was not traced as a whole ends the program in 13.0 to 13.4 if whole graphs are traced now.
enum class GraphTracing { nodes, whole, nothing };
GraphTracing fake_graph_tracing(std::uint32_t exec);
// cudaGraphLaunch and its work.
void fake_graph_replay(std::uint32_t exec, std::uint32_t stream);
// PC sampling (fake_pc_sampling.cpp).
void fake_sample(const char* kernel);        // reports the end of a kernel; fake_record() does so itself
void fake_overflow(std::uint64_t lost);      // the next fetch finds a full buffer and no samples
void fake_fetch_takes(unsigned milliseconds);
void fake_destroy_sampled();                 // ends all contexts, and CUPTI forgets them
void fake_drop_samples(std::uint32_t lost);  // the GPU reports this number of dropped samples
unsigned fake_sampled_contexts();
std::uint32_t fake_sampling_period();        // the last configured period
void fake_load_cubin(const char* cubin);       // reports a loaded module with this cubin: see fake_profiler.cpp
void fake_have_context(std::uint32_t id);  // a context from before CUPTI was attached
void fake_enter_call(int domain, std::uint32_t callback);  // reports the start or the end of a call
void fake_set_correlation(std::uint32_t correlation);  // of the calls that this thread reports with CUPTI's data
// Reports the start of a call (`result` null) or its end, with CUPTI's data but without parameters.
void fake_tell_call(int domain, std::uint32_t callback, const int* result);
// Reports a call about a stream, from its start to its end, to the subscriber.
void fake_stream_call(int domain, std::uint32_t callback, void* stream, void* context, int result);
// Reports a launch of `kernel` to the subscriber, at its start (`result` null) or at its end. `parameters` is the value of
// CUPTI's functionParams.
void fake_launch_call(std::uint32_t callback, const void* parameters, const char* kernel, void* context, const int* result);
// Reports a call of the driver to the subscriber, at its start (`result` null) or at its end.
void fake_driver_call(std::uint32_t callback, std::uint32_t correlation, const void* parameters, void* context, const int* result);
unsigned fake_callbacks();                     // number of calls of the subscriber
void fake_drop(std::size_t records);  // the next result of cuptiActivityGetNumDroppedRecords
void fake_drop_at_unsubscribe(std::size_t records);

bool fake_is_enabled(int kind);
bool fake_call_is_enabled(int domain, std::uint32_t callback);
unsigned fake_subscribers();
unsigned fake_stale_calls();                      // calls for a subscriber that has unsubscribed
unsigned fake_subscription_attempts();            // number of attempts to subscribe so far
unsigned fake_subscriptions();                    // number of subscribers so far
unsigned fake_finalized();                        // number of successful calls of cuptiFinalize()
void fake_on_flush(void (*hook)(bool forced));    // called at the start of each cuptiActivityFlushAll
void fake_on_dump(void (*hook)(int kind));        // called by cuptiActivityEnableAndDump, to report existing objects
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
