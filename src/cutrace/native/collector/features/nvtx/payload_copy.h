// Copies the extended payloads of an event into the thread's ring, on the program's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "payload_types.h"
#include "payload_walk.h"

namespace cutrace::nvtx {

// The payloads that a program passes with an event.
struct PayloadParts {
  const nvtxPayloadData_t* data = nullptr;
  std::size_t count = 0;
};

// The payloads of an event in a ring, after the message: a PayloadHead, then a PartHead and the bytes of each payload, padded to
// multiples of 8.
struct PayloadHead {
  std::uint32_t size;   // bytes, this head included
  std::uint16_t parts;
  std::uint16_t omitted;  // payloads of unknown size, or beyond kMostParts
};
struct PartHead {
  std::uint64_t id;         // of the schema, or a predefined type
  const PayloadType* type;  // the schema with that id at the time of the event, null for none
  std::uint32_t size;       // bytes of the payload and of the copied data behind its pointers
  std::uint32_t own;        // bytes of the payload
  std::uint32_t cut;        // bytes of the payload that exceeded kLargestPayload
  std::uint32_t unread;     // pointers to memory that could not be copied, or only in part
};
static_assert(sizeof(PayloadHead) == 8 && sizeof(PartHead) == 32);

inline constexpr std::size_t kLargestPayload = 8192;  // bytes of all payloads of an event
inline constexpr std::size_t kMostParts = 32;

class PayloadCopy {
 public:
  PayloadCopy(std::uint16_t domain, PayloadParts parts);
  bool empty() const { return count_ == 0 && omitted_ == 0; }
  // The largest number of bytes that write() may take.
  std::size_t most() const;
  // Returns the number of bytes written, a multiple of 8.
  std::size_t write(std::uint8_t* at) const;

 private:
  struct CopiedPart {
    std::uint64_t id;
    const PayloadType* type;
    const std::uint8_t* data;
    std::size_t size;  // of the program's payload
    std::size_t kept;  // the part that is copied
  };

  // A part during its copying. `room` bytes are left for the data behind its pointers.
  struct CopyTarget {
    std::uint8_t* data;
    std::size_t size;
    std::size_t room;
    std::span<const std::uint64_t> lengths;
    std::uint32_t unread = 0;
  };
  void copy_pointees(const PayloadType& type, std::size_t at, CopyTarget& target, int depth) const;
  std::size_t copy_pointee(const PayloadField& field, std::uint64_t address, std::size_t elements, CopyTarget& target) const;
  std::size_t copy_terminated(std::uint64_t address, std::uint8_t* to, std::size_t most, std::size_t unit, CopyTarget& target) const;
  std::size_t read(std::uint64_t address, std::uint8_t* to, std::size_t size) const;
  bool holds(std::uint64_t address) const;

  std::array<CopiedPart, kMostParts> parts_;
  std::size_t count_ = 0;
  std::size_t omitted_ = 0;
  std::size_t kept_ = 0;
  bool pointers_ = false;
};

// Reads memory behind a pointer of the program. The memory may be unmapped. Returns the number of bytes before the first
// unreadable one.
std::size_t read_safely(std::uint64_t address, void* to, std::size_t size);

}  // namespace cutrace::nvtx
