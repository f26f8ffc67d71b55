// The headers of NVTX's extension modules, with corrections for the headers of CUDA 13.0.
#pragma once

#include <nvtx3/nvToolsExtCounters.h>
#include <nvtx3/nvToolsExtPayload.h>
#include <nvtx3/nvToolsExtSemanticsCounters.h>
#include <nvtx3/nvToolsExtSemanticsScope.h>
#include <nvtx3/nvToolsExtSemanticsTime.h>

#ifndef NVTX_PAYLOAD_ENTRY_TYPE_RANGE_ID
#define NVTX_PAYLOAD_ENTRY_TYPE_RANGE_ID 67
#endif
#ifndef NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_PUSH
#define NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_PUSH (5 << 3)
#define NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_POP (6 << 3)
#define NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_START (7 << 3)
#define NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_END (8 << 3)
#endif
#ifndef NVTX_COUNTER_FLAG_VALUETYPES
#define NVTX_COUNTER_FLAG_VALUETYPES (3 << 4)
#endif

// Replaces a constant of the header, which shifts an int by 32 bits.
#undef NVTX_COUNTER_BATCH_FLAG_BEGINTIME_INTERVAL_PAIR
#undef NVTX_COUNTER_BATCH_FLAG_ENDTIME_INTERVAL_PAIR
#define NVTX_COUNTER_BATCH_FLAG_BEGINTIME_INTERVAL_PAIR (NVTX_STATIC_CAST(uint64_t, 1) << 32)
#define NVTX_COUNTER_BATCH_FLAG_ENDTIME_INTERVAL_PAIR (NVTX_STATIC_CAST(uint64_t, 2) << 32)

// Adds arrays with a length in another payload, which the header lacks.
#undef NVTX_PAYLOAD_ENTRY_FLAG_IS_ARRAY
#define NVTX_PAYLOAD_ENTRY_FLAG_IS_ARRAY (7 << 4)
