// A program that uses NVTX, with the collector as its tool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "capture_reader.h"
#include "collector_under_test.h"
#include "features/nvtx/nvtx_constants.h"

struct NvtxProgram {
  NvtxProgram() {
    setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
    nvtxInitialize(nullptr);
    domain = nvtxDomainCreateA("d");
  }
  void begin(const std::string& more = "") { CHECK_EQUAL(collector.start(folder.options(more).c_str()), 0); }
  CaptureReader end() {
    CHECK_EQUAL(collector.stop(), 0);
    return CaptureReader(folder.only());
  }
  Collector collector;
  Folder folder;
  nvtxDomainHandle_t domain;
};

using Entry = nvtxPayloadSchemaEntry_t;

inline Entry entry(const char* name, std::uint64_t type, std::uint64_t flags = 0, std::uint64_t detail = 0, std::uint64_t offset = 0,
                   const nvtxSemanticsHeader_t* semantics = nullptr) {
  return {flags, type, name, nullptr, detail, offset, semantics, nullptr};
}

struct Schema {
  std::vector<Entry> entries;
  std::uint64_t type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
  std::size_t size = 0;
  const char* name = nullptr;
  std::uint64_t flags = 0;
  std::uint64_t id = 0;
  std::size_t pack = 0;
};

inline std::uint64_t registered(nvtxDomainHandle_t domain, const Schema& schema) {
  nvtxPayloadSchemaAttr_t a{};
  a.fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES |
                NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_FLAGS | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME;
  if (schema.size != 0) a.fieldMask |= NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE;
  if (schema.id != 0) a.fieldMask |= NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID;
  if (schema.pack != 0) a.fieldMask |= NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ALIGNMENT;
  a.name = schema.name;
  a.type = schema.type;
  a.flags = schema.flags;
  a.entries = schema.entries.data();
  a.numEntries = schema.entries.size();
  a.payloadStaticSize = schema.size;
  a.packAlign = schema.pack;
  a.schemaId = schema.id;
  return nvtxPayloadSchemaRegister(domain, &a);
}

// The details of all losses.
inline std::string reasons(const CaptureReader& capture) {
  std::string out;
  for (const auto& row : capture.rows<cutrace::rows::Losses>()) out += capture.text(row.detail) + "; ";
  return out;
}
