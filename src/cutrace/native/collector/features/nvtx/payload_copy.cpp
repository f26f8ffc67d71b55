#include "payload_copy.h"

#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/memory.h"
#include "core/rings.h"

namespace cutrace::nvtx {
namespace {

constexpr int kDeepestPointer = 4;
constexpr std::size_t kPage = 4096;

bool is_zero(const std::uint8_t* data, std::size_t unit) {
  return std::all_of(data, data + unit, [](std::uint8_t byte) { return byte == 0; });
}

// The size of a payload that the program passes without a size; 0 for an unknown size.
std::size_t unsized(std::uint64_t id, const PayloadType* type, const std::uint8_t* data) {
  if (type != nullptr) return type->size != kVaries ? type->size : 0;
  if (id < NVTX_PAYLOAD_ENTRY_TYPE_CSTRING || id > NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32) return 0;
  const std::size_t unit = size_of_predefined(id);
  std::size_t size = 0;
  while (size + unit <= kLargestPayload && !is_zero(data + size, unit)) size += unit;
  return std::max(size, unit);
}

}  // namespace

std::size_t read_safely(std::uint64_t address, void* to, std::size_t size) {
  const int saved = errno;
  ssize_t got = try_read(address, to, size);
  if (got < 0 && (errno == ENOSYS || errno == EPERM)) {  // a sandbox forbids the system call: trust the program
    const std::size_t in_page = std::min(size, kPage - address % kPage);
    std::memcpy(to, reinterpret_cast<const void*>(address), in_page);
    got = static_cast<ssize_t>(in_page);
  }
  errno = saved;
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

PayloadCopy::PayloadCopy(std::uint16_t domain, PayloadParts parts) {
  if (parts.data == nullptr) return;
  omitted_ = parts.count - std::min(parts.count, kMostParts);
  std::size_t room = kLargestPayload;
  for (std::size_t i = 0; i < std::min(parts.count, kMostParts); ++i) {
    const nvtxPayloadData_t& given = parts.data[i];
    CopiedPart& part = parts_[count_++];
    part = {given.schemaId, find_type(domain, given.schemaId), static_cast<const std::uint8_t*>(given.payload), 0, 0};
    if (given.payload == nullptr) continue;  // still counts, so that the next payloads keep their numbers
    part.size = given.size != ~std::size_t{0} ? given.size : unsized(part.id, part.type, part.data);
    if (part.size == 0 && given.size != 0) ++omitted_;
    // Other payloads point into this one. The copies of those payloads include the data behind their pointers.
    if (part.id != NVTX_TYPE_PAYLOAD_SCHEMA_REFERENCED) part.kept = std::min(part.size, room);
    room -= aligned(part.kept, 8) < room ? aligned(part.kept, 8) : room;
    kept_ += aligned(part.kept, 8);
    pointers_ = pointers_ || (part.type != nullptr && part.type->has_pointers);
  }
}

std::size_t PayloadCopy::most() const {
  if (empty()) return 0;
  return sizeof(PayloadHead) + count_ * sizeof(PartHead) + (pointers_ ? kLargestPayload + 8 * count_ : kept_);
}

std::size_t PayloadCopy::write(std::uint8_t* at) const {
  std::uint8_t* const start = at;
  at += sizeof(PayloadHead);
  std::size_t room = kLargestPayload - kept_;  // room for pointed-to data
  std::array<std::uint64_t, kMostParts> lengths;
  for (std::size_t i = 0; pointers_ && i < count_; ++i)
    lengths[i] = length_in(parts_[i].id, parts_[i].type, {.data = parts_[i].data, .size = parts_[i].kept});
  for (std::size_t i = 0; i < count_; ++i) {
    const CopiedPart& part = parts_[i];
    std::uint8_t* const data = at + sizeof(PartHead);
    if (part.kept != 0) std::memcpy(data, part.data, part.kept);
    CopyTarget target{data, part.kept, room, {lengths.data(), pointers_ ? count_ : 0}};
    if (part.type != nullptr && part.type->has_pointers) copy_pointees(*part.type, 0, target, kDeepestPointer);
    room = target.room;
    const std::size_t cut = part.id != NVTX_TYPE_PAYLOAD_SCHEMA_REFERENCED ? part.size - part.kept : 0;
    const PartHead head{part.id, part.type, static_cast<std::uint32_t>(target.size), static_cast<std::uint32_t>(part.kept),
                        static_cast<std::uint32_t>(std::min(cut, std::size_t{0xFFFFFFFF})), target.unread};
    std::memcpy(at, &head, sizeof head);
    at = data + aligned(target.size, 8);
  }
  const PayloadHead head{static_cast<std::uint32_t>(at - start), static_cast<std::uint16_t>(count_),
                         static_cast<std::uint16_t>(std::min<std::size_t>(omitted_, 0xFFFF))};
  std::memcpy(start, &head, sizeof head);
  return static_cast<std::size_t>(at - start);
}

// Copies the data behind the pointers of a schema at `at` to the end of the payload, and replaces the pointers by offsets from the
// payload's start. A pointer to memory that cannot be read becomes null.
void PayloadCopy::copy_pointees(const PayloadType& type, std::size_t at, CopyTarget& target, int depth) const {
  // Data added after the payload do not move its fields.
  const PayloadBytes bytes{.data = target.data, .size = target.size, .lengths = target.lengths};
  FieldWalk walk(type, bytes, at);
  for (FieldPlace place; walk.next(place);) {
    const PayloadField& field = *place.field;
    const bool deeper = field.nested != nullptr && field.nested->has_pointers && depth != 0;
    if (!field.is_pointer()) {
      const std::size_t stride = field.unit != kVaries ? field.unit : 0;
      for (std::size_t i = 0; deeper && field.slot == 0 && i < place.count; ++i)
        copy_pointees(*field.nested, place.at + i * stride, target, depth - 1);
      continue;
    }
    std::uint64_t address = 0;
    if (!bytes.read(place.slot, address) || address == 0) continue;
    const std::uint64_t copied = copy_pointee(field, address, field.is_terminated() ? 0 : walk.elements(place), target);
    std::memcpy(target.data + place.slot, &copied, sizeof copied);
    if (copied == 0) ++target.unread;
    else if (deeper) copy_pointees(*field.nested, copied, target, depth - 1);
  }
}

// Reads the bytes at an address up to the first unreadable one. `to` has space for `size` bytes.
std::size_t PayloadCopy::read(std::uint64_t address, std::uint8_t* to, std::size_t size) const {
  for (std::size_t i = 0; i < count_; ++i) {
    const CopiedPart& part = parts_[i];
    const auto start = reinterpret_cast<std::uintptr_t>(part.data);
    if (part.data == nullptr || address < start || address - start >= part.size) continue;
    size = std::min(size, part.size - (address - start));
    std::memcpy(to, reinterpret_cast<const void*>(address), size);
    return size;
  }
  return read_safely(address, to, size);
}

bool PayloadCopy::holds(std::uint64_t address) const {
  return std::any_of(parts_.begin(), parts_.begin() + static_cast<std::ptrdiff_t>(count_), [&](const CopiedPart& part) {
    const auto start = reinterpret_cast<std::uintptr_t>(part.data);
    return part.data != nullptr && address >= start && address - start < part.size;
  });
}

// Returns the offset of the copy, 0 for none.
std::size_t PayloadCopy::copy_pointee(const PayloadField& field, std::uint64_t address, std::size_t elements, CopyTarget& target) const {
  const bool may_be_anywhere = field.is_string() || (field.flags & NVTX_PAYLOAD_ENTRY_FLAG_DEEP_COPY) != 0;
  if (field.unit == 0 || field.unit == kVaries || (!may_be_anywhere && !holds(address))) return 0;
  const std::size_t offset = aligned(target.size, 8);
  const std::size_t padding = offset - target.size;
  if (target.room < padding + field.unit) return 0;
  const std::size_t room = target.room - padding;
  std::uint8_t* const to = target.data + offset;
  std::size_t size = 0;
  if (field.is_terminated()) {
    size = copy_terminated(address, to, std::min(room, Ring::kLongestText), field.unit, target);
  } else if (elements == 0) {
    size = field.unit;  // an empty array is no null pointer
    std::memset(to, 0, size);
  } else if (elements <= room / field.unit) {
    size = elements * field.unit;
    if (read(address, to, size) < size) size = 0;
  }
  if (size == 0) return 0;
  target.room -= padding + size;
  target.size = offset + size;
  return offset;
}

// Copies up to the first zero element. Returns the bytes with that element, 0 when nothing can be read.
std::size_t PayloadCopy::copy_terminated(std::uint64_t address, std::uint8_t* to, std::size_t most, std::size_t unit,
                                         CopyTarget& target) const {
  constexpr std::size_t kFirst = 256;  // most strings are shorter
  std::size_t got = 0;
  std::size_t length = 0;
  for (std::size_t wanted = std::min(most, kFirst); got < wanted; wanted = most) {
    const std::size_t more = read(address + got, to + got, wanted - got);
    got += more;
    while (length + unit <= got && !is_zero(to + length, unit)) length += unit;
    if (length + unit <= got) return length + unit;
    if (more == 0) break;
  }
  if (got < unit) return 0;
  ++target.unread;  // only the start of the data was read
  length = std::min(length, (most / unit - 1) * unit);
  std::memset(to + length, 0, unit);
  return length + unit;
}

}  // namespace cutrace::nvtx
