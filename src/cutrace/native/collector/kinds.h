// Which CUPTI activity kinds a recording enables, and which API calls it keeps.
//
// One place, because a benchmark that measures the cost of the collector against a null collector must enable
// exactly the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cupti_library.h"

namespace cutrace {

// Names of kinds as users write them; the order is that of the bits of a KindSet.
enum class Kind : std::uint32_t {
  kernel, memcpy, memset, api, sync, event, memory, pool, overhead, device, context, stream, name,
  nvtx, module, jit, unified_memory, environment, external, count
};

using KindSet = std::uint32_t;
constexpr KindSet bit(Kind kind) { return KindSet{1} << static_cast<std::uint32_t>(kind); }

// The other kinds are expensive (environment samples, unified memory), large (modules) or rarely wanted. Each of sync and event
// makes CUPTI 13.0 step into every API call, recorded or not: 0.9 us an operation in a PyTorch loop (docs/collector.md). The
// calls that wait are recorded anyway, as API calls.
inline constexpr KindSet kDefaultKinds =
    bit(Kind::kernel) | bit(Kind::memcpy) | bit(Kind::memset) | bit(Kind::api) | bit(Kind::memory) | bit(Kind::pool) |
    bit(Kind::overhead) | bit(Kind::device) | bit(Kind::context) | bit(Kind::stream) | bit(Kind::name) | bit(Kind::nvtx);

enum class ApiFilter { launch, all, none };

const char* kind_name(Kind kind);
bool parse_kinds(std::string_view list, KindSet& kinds);  // comma-separated names; "default" stands for its kinds
bool parse_api_filter(std::string_view text, ApiFilter& filter);

// Whether ApiFilter::launch keeps the function that CUPTI calls `name`, e.g. "cudaLaunchKernel_v7000".
bool keeps_api_call(std::string_view name);
// Whether that function gives work to the GPU. False for __cudaLaunchKernel, which calls cuLaunchKernel.
bool gives_work(std::string_view name);

struct Refusal {
  std::string what;   // activity kind or call
  std::string error;  // CUPTI's name of the error
};

struct EnabledKinds {
  std::vector<CUpti_ActivityKind> activities;  // what was enabled and must be disabled
  bool calls_one_by_one = false;               // API calls were enabled by id and not by kind
  KindSet kinds = 0;                           // kinds of which at least a part works
  std::vector<Refusal> refused;
};

// Each kind is enabled on its own; one that CUPTI refuses is reported in the result and does not stop the rest.
// `before_cuda`: the program has not initialised CUDA yet.
EnabledKinds enable_kinds(const CuptiLibrary& cupti, KindSet kinds, ApiFilter api, bool graph_nodes, bool before_cuda);
void disable_kinds(const CuptiLibrary& cupti, const EnabledKinds& enabled);

}  // namespace cutrace
