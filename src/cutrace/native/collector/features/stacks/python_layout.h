// Where CPython keeps the parts of a stack, by its minor version: offsets in bytes on 64-bit systems.
//
// They come from the headers of the releases. From 3.13 on the interpreter has most offsets in _Py_DebugOffsets.
// interpreter_check.cpp compares all offsets with the public API before the first stack is taken.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cutrace::python {

inline constexpr std::uint32_t kNone = 0xFFFFFFFF;

struct PythonLayout {
  std::uint32_t minor;
  // In a thread's state: its innermost frame, or a _PyCFrame (3.11 and 3.12), which has the frame at `in_cframe`.
  std::uint32_t current_frame;
  std::uint32_t in_cframe;
  // In a frame. Frames with an owner from `first_entry` on are entries into the interpreter and have no code.
  std::uint32_t code;
  std::uint32_t instruction;
  std::uint32_t previous;
  std::uint32_t owner;
  std::uint32_t first_entry;
  // In a code object.
  std::uint32_t file;
  std::uint32_t name;
  std::uint32_t line_table;
  std::uint32_t first_line;
  std::uint32_t first_traceable;
  std::uint32_t bytecode;
  // In a string: the sizes of the heads of ASCII strings and of other compact strings.
  std::uint32_t ascii_head;
  std::uint32_t compact_head;
  // In _PyRuntime: the number of interpreters so far. Not needed from 3.12 on.
  std::uint32_t interpreters;
};

inline constexpr PythonLayout kLayouts[] = {
    {.minor = 10, .current_frame = 24, .in_cframe = kNone,
     .code = 32, .instruction = 96, .previous = 24, .owner = kNone, .first_entry = kNone,
     .file = 104, .name = 112, .line_table = 120, .first_line = 40, .first_traceable = kNone, .bytecode = kNone,
     .ascii_head = 48, .compact_head = 72, .interpreters = 48},
    {.minor = 11, .current_frame = 56, .in_cframe = 8,
     .code = 32, .instruction = 56, .previous = 48, .owner = 69, .first_entry = kNone,
     .file = 112, .name = 128, .line_table = 136, .first_line = 72, .first_traceable = 168, .bytecode = 184,
     .ascii_head = 48, .compact_head = 72, .interpreters = 56},
    {.minor = 12, .current_frame = 56, .in_cframe = 0,
     .code = 0, .instruction = 56, .previous = 8, .owner = 70, .first_entry = 3,
     .file = 112, .name = 128, .line_table = 136, .first_line = 68, .first_traceable = 176, .bytecode = 192,
     .ascii_head = 40, .compact_head = 56, .interpreters = kNone},
    {.minor = 13, .current_frame = 72, .in_cframe = kNone,
     .code = 0, .instruction = 56, .previous = 8, .owner = 70, .first_entry = 3,
     .file = 112, .name = 128, .line_table = 136, .first_line = 68, .first_traceable = 184, .bytecode = 200,
     .ascii_head = 40, .compact_head = 56, .interpreters = kNone},
    {.minor = 14, .current_frame = 72, .in_cframe = kNone,
     .code = 0, .instruction = 56, .previous = 8, .owner = 74, .first_entry = 3,
     .file = 112, .name = 128, .line_table = 136, .first_line = 68, .first_traceable = 192, .bytecode = 208,
     .ascii_head = 40, .compact_head = 56, .interpreters = kNone},
    {.minor = 15, .current_frame = 72, .in_cframe = kNone,
     .code = 0, .instruction = 56, .previous = 8, .owner = 74, .first_entry = 3,
     .file = 112, .name = 128, .line_table = 136, .first_line = 68, .first_traceable = 192, .bytecode = 208,
     .ascii_head = 40, .compact_head = 56, .interpreters = kNone},
};

// The same in all these versions.
inline constexpr std::uint32_t kObjectType = 8;
inline constexpr std::uint32_t kBytesSize = 16, kBytesData = 32;
inline constexpr std::uint32_t kStringLength = 16, kStringState = 32;
inline constexpr std::uint32_t kTypeDealloc = 48;
// Owners of frames.
inline constexpr std::uint8_t kOwnedByGenerator = 1, kOwnedByFrameObject = 2;

// The indices of fields in _Py_DebugOffsets, an array of 64-bit numbers at the start of _PyRuntime from 3.13 on.
struct DebugFields {
  std::uint32_t minor;
  std::uint32_t current_frame;
  std::uint32_t previous, code, instruction, owner;
  std::uint32_t file, name, line_table, first_line, bytecode;
  std::uint32_t object_type, bytes_size, bytes_data;
  std::uint32_t string_state, string_length, ascii_head;
};

inline constexpr DebugFields kDebugFields[] = {
    {.minor = 13, .current_frame = 23, .previous = 29, .code = 30, .instruction = 31, .owner = 33,
     .file = 35, .name = 37, .line_table = 38, .first_line = 39, .bytecode = 43,
     .object_type = 45, .bytes_size = 65, .bytes_data = 66, .string_state = 68, .string_length = 69, .ascii_head = 70},
    {.minor = 14, .current_frame = 26, .previous = 32, .code = 33, .instruction = 34, .owner = 36,
     .file = 40, .name = 42, .line_table = 43, .first_line = 44, .bytecode = 48,
     .object_type = 51, .bytes_size = 75, .bytes_data = 76, .string_state = 78, .string_length = 79, .ascii_head = 80},
    {.minor = 15, .current_frame = 26, .previous = 40, .code = 41, .instruction = 42, .owner = 44,
     .file = 48, .name = 50, .line_table = 51, .first_line = 52, .bytecode = 56,
     .object_type = 59, .bytes_size = 87, .bytes_data = 88, .string_state = 90, .string_length = 91, .ascii_head = 92},
};
inline constexpr char kDebugCookie[] = "xdebugpy";
inline constexpr std::uint32_t kDebugFreeThreaded = 2;

}  // namespace cutrace::python
