#include "python_frames.h"

#include <dlfcn.h>

#include <charconv>
#include <iterator>

namespace cutrace::python {

static_assert(sizeof(void*) == 8, "the offsets are those of 64-bit systems");

InterpreterAccess interpreter;

namespace {

// walk_frames() names the indices of this table.
static_assert(kLayouts[0].minor == 10 && kLayouts[5].minor == 15 && std::size(kLayouts) == 6);

void* symbol(const char* name) { return dlsym(RTLD_DEFAULT, name); }

// "3.13.0 (main, ...)" -> 13; 0 for another major version.
std::uint32_t minor_of(std::string_view version) {
  std::uint32_t minor = 0;
  if (!version.starts_with("3.")) return 0;
  std::from_chars(version.data() + 2, version.data() + version.size(), minor);
  return minor;
}

const PythonLayout* layout_of(std::uint32_t minor) {
  for (const PythonLayout& layout : kLayouts)
    if (layout.minor == minor) return &layout;
  return nullptr;
}

bool agrees_with_debug_offsets(const PythonLayout& layout, const DebugFields& fields, const void* runtime) {
  if (std::memcmp(runtime, kDebugCookie, sizeof kDebugCookie - 1) != 0) return false;
  const auto offset = [&](std::uint32_t field) { return read_at<std::uint64_t>(runtime, field * 8); };
  return offset(fields.current_frame) == layout.current_frame && offset(fields.previous) == layout.previous &&
         offset(fields.code) == layout.code && offset(fields.instruction) == layout.instruction &&
         offset(fields.owner) == layout.owner && offset(fields.file) == layout.file && offset(fields.name) == layout.name &&
         offset(fields.line_table) == layout.line_table && offset(fields.first_line) == layout.first_line &&
         offset(fields.bytecode) == layout.bytecode && offset(fields.object_type) == kObjectType &&
         offset(fields.bytes_size) == kBytesSize && offset(fields.bytes_data) == kBytesData &&
         offset(fields.string_state) == kStringState && offset(fields.string_length) == kStringLength &&
         offset(fields.ascii_head) == layout.ascii_head;
}

bool is_free_threaded(std::string_view version, std::uint32_t minor, const void* runtime) {
  if (version.find("free-threading") != version.npos) return true;
  return minor >= 13 && read_at<std::uint64_t>(runtime, kDebugFreeThreaded * 8) != 0;
}

}  // namespace

std::string find_interpreter() {
  if (interpreter.version != kNone) return {};
  auto* const version_of = reinterpret_cast<const char* (*)()>(symbol("Py_GetVersion"));
  InterpreterAccess found;
  found.this_thread_state = reinterpret_cast<void* (*)()>(symbol("PyGILState_GetThisThreadState"));
  found.is_initialized = reinterpret_cast<int (*)()>(symbol("Py_IsInitialized"));
  found.runtime = symbol("_PyRuntime");
  found.code_type = symbol("PyCode_Type");
  if (version_of == nullptr || found.this_thread_state == nullptr || found.is_initialized == nullptr)
    return "the process is no Python program";
  const std::string_view version = version_of();
  const std::string release(version.substr(0, version.find(' ')));
  const std::uint32_t minor = minor_of(version);
  const PythonLayout* const layout = layout_of(minor);
  if (layout == nullptr || found.runtime == nullptr || found.code_type == nullptr)
    return "the frames of Python " + release + " are unknown: use CPython 3.10 to 3.15";
  if (is_free_threaded(version, minor, found.runtime))
    return "Python " + release + " is a free-threaded build, whose frames cannot be read: use the default build";
  // In a build that traces references, each object has a larger head.
  if (symbol("PyModule_Create2TraceRefs") != nullptr)
    return "Python " + release + " traces references, so its objects are unknown: use the default build";
  for (const DebugFields& fields : kDebugFields)
    if (fields.minor == minor && !agrees_with_debug_offsets(*layout, fields, found.runtime))
      return "Python " + release + " has its frames at other offsets than the releases of 3." + std::to_string(minor);
  found.version = static_cast<std::uint32_t>(layout - kLayouts);
  interpreter = found;
  return {};
}

// ---- strings ----

namespace {

std::ptrdiff_t utf8_size(std::uint32_t code) {
  if (code < 0x80) return 1;
  if (code < 0x800) return 2;
  return code < 0x10000 ? 3 : 4;
}

// Appends a code point; false when it does not fit.
bool append_utf8(std::uint32_t code, char*& out, const char* end) {
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (surrogate) code = 0xFFFD;
  const std::ptrdiff_t size = utf8_size(code);
  if (end - out < size) return false;
  if (size == 1) {
    *out++ = static_cast<char>(code);
    return true;
  }
  constexpr std::uint32_t kFirstByte[] = {0, 0, 0xC0, 0xE0, 0xF0};
  auto shift = static_cast<std::uint32_t>(6 * (size - 1));
  *out++ = static_cast<char>(kFirstByte[size] | code >> shift);
  while (shift != 0) {
    shift -= 6;
    *out++ = static_cast<char>(0x80 | (code >> shift & 0x3F));
  }
  return true;
}

template <typename Unit>
std::uint32_t convert(const void* units, std::uint64_t length, char* out, std::size_t room) {
  char* next = out;
  for (std::uint64_t i = 0; i < length; ++i) {
    Unit unit;
    std::memcpy(&unit, static_cast<const Unit*>(units) + i, sizeof unit);
    if (!append_utf8(unit, next, out + room)) break;
  }
  return static_cast<std::uint32_t>(next - out);
}

}  // namespace

bool read_string(const void* string, char* out, std::size_t room, std::uint32_t& bytes) {
  if (string == nullptr) return false;
  const PythonLayout& layout = kLayouts[interpreter.version];
  const auto state = read_at<std::uint32_t>(string, kStringState);
  const std::uint32_t unit = state >> 2 & 7;
  const bool compact = (state >> 5 & 1) != 0;
  const bool ascii = (state >> 6 & 1) != 0;
  const auto* units = static_cast<const std::uint8_t*>(string) + (compact && ascii ? layout.ascii_head : layout.compact_head);
  // An object of a subclass of str has a pointer to its units instead.
  if (!compact) units = read_at<const std::uint8_t*>(string, layout.compact_head);
  const auto length = read_at<std::uint64_t>(string, kStringLength);
  if (units == nullptr) return false;
  switch (unit) {
    case 1: bytes = convert<std::uint8_t>(units, length, out, room); return true;
    case 2: bytes = convert<std::uint16_t>(units, length, out, room); return true;
    case 4: bytes = convert<std::uint32_t>(units, length, out, room); return true;
    default: return false;
  }
}

// ---- lines ----

namespace {

constexpr std::int64_t kNoLine = 0;

// The bytes of a table: pairs of a distance in bytecode and a distance in lines, as in PyCodeAddressRange of 3.10.
std::int64_t line_in_pairs(const std::uint8_t* next, const std::uint8_t* end, std::int64_t line, std::int64_t offset) {
  constexpr std::int8_t kWithoutLine = -128;
  std::int64_t reached = 0;
  for (; end - next >= 2; next += 2) {
    const auto lines = static_cast<std::int8_t>(next[1]);
    if (lines != kWithoutLine) line += lines;
    reached += next[0];
    if (offset < reached) return lines == kWithoutLine ? kNoLine : line;
  }
  return kNoLine;
}

std::int64_t read_signed_varint(const std::uint8_t*& next, const std::uint8_t* end) {
  std::uint64_t value = 0;
  for (std::uint32_t shift = 0; next < end && shift < 64; shift += 6) {
    const std::uint8_t byte = *next++;
    value |= std::uint64_t{byte & 0x3Fu} << shift;
    if ((byte & 0x40) == 0) break;
  }
  const auto magnitude = static_cast<std::int64_t>(value >> 1);
  return (value & 1) != 0 ? -magnitude : magnitude;
}

// The location table of 3.11 and later (Objects/locations.md of CPython). The first byte of an entry has its upper bit set.
std::int64_t line_in_locations(const std::uint8_t* next, const std::uint8_t* end, std::int64_t line, std::int64_t offset) {
  enum : std::uint32_t { kOneLine0 = 10, kOneLine2 = 12, kNoColumns = 13, kLong = 14, kWithoutLocation = 15 };
  constexpr std::int64_t kInstructionBytes = 2;
  std::int64_t reached = 0;
  while (next < end) {
    const std::uint8_t first = *next++;
    const std::uint32_t kind = first >> 3 & 15;
    if (kind == kNoColumns || kind == kLong) line += read_signed_varint(next, end);
    else if (kind >= kOneLine0 && kind <= kOneLine2) line += kind - kOneLine0;
    reached += kInstructionBytes * ((first & 7) + 1);
    if (offset < reached) return kind == kWithoutLocation ? kNoLine : line;
    while (next < end && (*next & 0x80) == 0) ++next;
  }
  return kNoLine;
}

// `offset` in bytes of bytecode.
std::uint32_t line_of(const void* code, std::int64_t offset) {
  const PythonLayout& layout = kLayouts[interpreter.version];
  const auto first_line = read_at<std::int32_t>(code, layout.first_line);
  const auto* const table = read_at<const std::uint8_t*>(code, layout.line_table);
  if (offset < 0) return first_line > 0 ? static_cast<std::uint32_t>(first_line) : 0;
  if (table == nullptr) return 0;
  const auto size = read_at<std::int64_t>(table, kBytesSize);
  const std::uint8_t* const start = table + kBytesData;
  auto* const search = layout.minor == 10 ? line_in_pairs : line_in_locations;
  const std::int64_t line = search(start, start + size, first_line, offset);
  return line > 0 ? static_cast<std::uint32_t>(line) : 0;
}

}  // namespace

FrameKind read_frame(const FramePosition& position, FrameText& text) {
  const PythonLayout& layout = kLayouts[interpreter.version];
  const auto* const code = reinterpret_cast<const void*>(position.code);
  if (code == nullptr || read_at<const void*>(code, kObjectType) != interpreter.code_type) return FrameKind::unreadable;
  std::int64_t offset = 0;
  std::uint32_t traced_line = 0;
  if (layout.minor == 10) {
    constexpr std::int64_t kInstructionBytes = 2;
    offset = static_cast<std::int32_t>(position.instruction) * kInstructionBytes;
    traced_line = static_cast<std::uint32_t>(position.instruction >> 32);
  } else {
    const std::uint64_t address = position.instruction & ~FramePosition::kInGenerator;
    offset = static_cast<std::int64_t>(address - (position.code + layout.bytecode));
    // The condition of _PyFrame_IsIncomplete().
    const bool begun = offset >= 2 * std::int64_t{read_at<std::int32_t>(code, layout.first_traceable)};
    if (!begun && (position.instruction & FramePosition::kInGenerator) == 0) return FrameKind::hidden;
  }
  const auto* const file = read_at<const void*>(code, layout.file);
  const auto* const name = read_at<const void*>(code, layout.name);
  if (!read_string(file, text.file.data(), text.file.size(), text.file_bytes)) return FrameKind::unreadable;
  if (!read_string(name, text.function.data(), text.function.size(), text.function_bytes)) return FrameKind::unreadable;
  text.line = traced_line != 0 ? traced_line : line_of(code, offset);
  return FrameKind::shown;
}

}  // namespace cutrace::python
