// Registers counters of NVTX, and puts their samples into a ring as events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "payload_types.h"

namespace cutrace::nvtx {

struct Counter {
  std::uint16_t domain = 0;
  std::uint64_t id = 0;
  mutable const Counter* next = nullptr;  // see Registrations

  std::string name;
  std::uint64_t schema = 0;  // the id of a schema, or a predefined type
  Semantics semantics;
};

// The id of a new counter, NVTX_COUNTER_ID_NONE for a refused one.
std::uint64_t register_counter(std::uint16_t domain, const nvtxCounterAttr_t* attributes);
const Counter* find_counter(std::uint16_t domain, std::uint64_t id);

// The `depth` of a sample's event. After the id come 8 bytes with the value, or the bytes of a schema.
enum class Sample : std::uint32_t { integer, real, none, bytes };

}  // namespace cutrace::nvtx
