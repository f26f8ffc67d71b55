// Extended payloads of NVTX, through the header-only library that programs use.
#include <nvtx3/nvToolsExtPayloadHelper.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "nvtx_program.h"

using namespace cutrace;

namespace {

nvtxEventAttributes_t attributes(const char* message) {
  nvtxEventAttributes_t a{};
  a.version = NVTX_VERSION;
  a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  a.messageType = NVTX_MESSAGE_TYPE_ASCII;
  a.message.ascii = message;
  return a;
}

void attach(nvtxEventAttributes_t& attributes, const nvtxPayloadData_t& payload) {
  attributes.payloadType = NVTX_PAYLOAD_TYPE_EXT;
  attributes.reserved0 = 1;
  attributes.payload.ullValue = reinterpret_cast<std::uintptr_t>(&payload);
}

std::uint64_t registered_enum(nvtxDomainHandle_t domain, std::span<const nvtxPayloadEnum_t> values, std::size_t size, std::uint64_t id = 0) {
  nvtxPayloadEnumAttr_t a{};
  a.fieldMask = NVTX_PAYLOAD_ENUM_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_ENUM_ATTR_FIELD_NUM_ENTRIES | NVTX_PAYLOAD_ENUM_ATTR_FIELD_SIZE;
  if (id != 0) a.fieldMask |= NVTX_PAYLOAD_ENUM_ATTR_FIELD_SCHEMA_ID;
  a.entries = values.data();
  a.numEntries = values.size();
  a.sizeOfEnum = size;
  a.schemaId = id;
  return nvtxPayloadEnumRegister(domain, &a);
}

template <typename Value>
nvtxPayloadData_t data(std::uint64_t schema, const Value& value) {
  return {schema, sizeof value, &value};
}

// Marks with one payload.
template <typename Value>
void mark(nvtxDomainHandle_t domain, std::uint64_t schema, const Value& value) {
  const nvtxPayloadData_t payload = data(schema, value);
  nvtxMarkPayload(domain, &payload, 1);
}
void mark_bytes(nvtxDomainHandle_t domain, std::uint64_t schema, const std::string& bytes) {
  const nvtxPayloadData_t payload{schema, bytes.size(), bytes.data()};
  nvtxMarkPayload(domain, &payload, 1);
}

// The arguments of all marks, in order.
std::vector<std::string> arguments(const CaptureReader& capture) {
  std::vector<std::string> out;
  for (const auto& row : capture.rows<rows::NvtxMarks>()) out.push_back(capture.text(row.arguments));
  return out;
}

}  // namespace

TEST(every_way_to_pass_a_payload_arrives) {
  NvtxProgram program;
  const auto d = program.domain;
  struct Step {
    std::uint64_t iteration;
    float loss;
  };
  const auto schema = registered(d, {{entry("iteration", NVTX_PAYLOAD_ENTRY_TYPE_UINT64), entry("loss", NVTX_PAYLOAD_ENTRY_TYPE_FLOAT)}});
  CHECK(schema >= NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START);
  CHECK_EQUAL(int{nvtxDomainIsEnabled(d)}, 1);
  program.begin();
  const Step step{42, 0.125f};
  nvtxPayloadData_t payload = data(schema, step);
  auto a = attributes("attributes");
  attach(a, payload);
  nvtxDomainMarkEx(d, &a);
  nvtxMarkPayload(d, &payload, 1);
  CHECK_EQUAL(nvtxDomainRangePushEx(d, &a), 0);
  CHECK_EQUAL(nvtxRangePushPayload(d, &payload, 1), 1);
  CHECK_EQUAL(nvtxDomainRangePop(d), 1);
  CHECK_EQUAL(nvtxDomainRangePop(d), 0);
  nvtxDomainRangeEnd(d, nvtxDomainRangeStartEx(d, &a));
  nvtxDomainRangeEnd(d, nvtxRangeStartPayload(d, &payload, 1));
  // Payloads at the end of a range, with and without payloads at its start.
  auto plain = attributes("plain");
  CHECK_EQUAL(nvtxDomainRangePushEx(d, &plain), 0);
  CHECK_EQUAL(nvtxRangePopPayload(d, &payload, 1), 0);
  CHECK_EQUAL(nvtxRangePushPayload(d, nullptr, 0), 0);
  CHECK_EQUAL(nvtxRangePopPayload(d, nullptr, 0), 0);
  nvtxRangeEndPayload(d, nvtxRangeStartPayload(d, &payload, 1), &payload, 1);
  const auto c = program.end();
  const std::string once = R"({"iteration":42,"loss":0.125})";
  CHECK(arguments(c) == std::vector<std::string>({once, once}));
  CHECK(c.text(c.rows<rows::NvtxMarks>()[0].name) == "attributes" && c.rows<rows::NvtxMarks>()[1].name == 0);
  std::vector<std::string> said;
  for (const auto& row : c.rows<rows::NvtxRanges>()) {
    CHECK(row.end != 0 && row.flags == 0 && c.text(row.domain) == "d");
    said.push_back(c.text(row.arguments));
  }
  const std::string twice = R"~({"iteration":42,"loss":0.125,"iteration (end)":42,"loss (end)":0.125})~";
  CHECK(said == std::vector<std::string>({once, once, once, once, once, "", twice}));
  CHECK(c.rows<rows::Losses>().empty());
}

TEST(each_predefined_type_has_its_value) {
  NvtxProgram program;
  const auto d = program.domain;
#pragma pack(push, 1)
  struct Numbers {
    char c = 'x';
    unsigned char uc = 200;
    short s = -2;
    unsigned short us = 65535;
    int i = -3;
    unsigned u = 4000000000u;
    long l = -4;
    unsigned long ul = ~0ul;
    std::int8_t i8 = -8;
    std::uint64_t u64 = std::numeric_limits<std::uint64_t>::max();
    std::int64_t i64 = std::numeric_limits<std::int64_t>::min();
    float f = 0.5f;
    double g = 1e300;
    std::size_t size = 7;
    void* address = reinterpret_cast<void*>(0xabc);
    wchar_t w = L'\u00e9';
    char16_t c16 = u'\u20ac';
    std::uint8_t byte = 0x1f;
    __extension__ __int128 wide = -(static_cast<__int128>(1) << 100);
    std::uint16_t half = 0x3e00;
    std::uint16_t bf16 = 0xc040;
    double none = std::numeric_limits<double>::quiet_NaN();
    double huge = -std::numeric_limits<double>::infinity();
    float whole = 3;
    long double longer = 2.5L;
  };
#pragma pack(pop)
  const Numbers numbers;
  using namespace std::string_literals;
  const auto schema = registered(
      d, {{entry("c", NVTX_PAYLOAD_ENTRY_TYPE_CHAR), entry("uc", NVTX_PAYLOAD_ENTRY_TYPE_UCHAR), entry("s", NVTX_PAYLOAD_ENTRY_TYPE_SHORT),
           entry("us", NVTX_PAYLOAD_ENTRY_TYPE_USHORT), entry("i", NVTX_PAYLOAD_ENTRY_TYPE_INT), entry("u", NVTX_PAYLOAD_ENTRY_TYPE_UINT),
           entry("l", NVTX_PAYLOAD_ENTRY_TYPE_LONG), entry("ul", NVTX_PAYLOAD_ENTRY_TYPE_ULONG), entry("i8", NVTX_PAYLOAD_ENTRY_TYPE_INT8),
           entry("u64", NVTX_PAYLOAD_ENTRY_TYPE_UINT64), entry("i64", NVTX_PAYLOAD_ENTRY_TYPE_INT64), entry("f", NVTX_PAYLOAD_ENTRY_TYPE_FLOAT),
           entry("g", NVTX_PAYLOAD_ENTRY_TYPE_FLOAT64), entry("size", NVTX_PAYLOAD_ENTRY_TYPE_SIZE), entry("address", NVTX_PAYLOAD_ENTRY_TYPE_ADDRESS),
           entry("w", NVTX_PAYLOAD_ENTRY_TYPE_WCHAR), entry("c16", NVTX_PAYLOAD_ENTRY_TYPE_CHAR16), entry("byte", NVTX_PAYLOAD_ENTRY_TYPE_BYTE),
           entry("wide", NVTX_PAYLOAD_ENTRY_TYPE_INT128), entry("half", NVTX_PAYLOAD_ENTRY_TYPE_FLOAT16), entry("bf16", NVTX_PAYLOAD_ENTRY_TYPE_BF16),
           entry("none", NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE), entry("huge", NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE), entry("whole", NVTX_PAYLOAD_ENTRY_TYPE_FLOAT32),
           entry("longer", NVTX_PAYLOAD_ENTRY_TYPE_LONGDOUBLE)},
          NVTX_PAYLOAD_SCHEMA_TYPE_STATIC, sizeof numbers, "numbers", 0, 0, 1});
  program.begin();
  mark(d, schema, numbers);
  // Predefined types need no schema.
  mark(d, NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE, 2.5);
  const std::int32_t three[] = {1, -2, 3};
  mark(d, NVTX_PAYLOAD_ENTRY_TYPE_INT32, three);
  mark_bytes(d, NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8, "a \"text\"");
  mark_bytes(d, NVTX_TYPE_PAYLOAD_SCHEMA_RAW, "\x01\xff\x10"s);
  const nvtxPayloadData_t unsized{NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, ~std::size_t{0}, "terminated"};
  nvtxMarkPayload(d, &unsized, 1);
  const auto c = program.end();
  CHECK_EQUAL(reasons(c), std::string());
  const auto said = arguments(c);
  CHECK_EQUAL(said[0],
              std::string(R"({"c":"x","uc":200,"s":-2,"us":65535,"i":-3,"u":4000000000,"l":-4,"ul":18446744073709551615,"i8":-8,)"
                          R"("u64":18446744073709551615,"i64":-9223372036854775808,"f":0.5,"g":1e+300,"size":7,"address":"0xabc",)"
                          "\"w\":\"\u00e9\",\"c16\":\"\u20ac\","
                          R"("byte":"0x1f","wide":-1267650600228229401496703205376,"half":1.5,"bf16":-3.0,"none":"nan","huge":"-inf",)"
                          R"("whole":3.0,"longer":2.5})"));
  CHECK(std::vector<std::string>(said.begin() + 1, said.end()) ==
        std::vector<std::string>({R"({"payload":2.5})", R"({"payload":[1,-2,3]})", R"({"payload":"a \"text\""})", R"({"payload":"01ff10"})",
                                  R"({"payload":"terminated"})"}));
}

TEST(arrays_nested_schemas_and_enums_are_read) {
  NvtxProgram program;
  const auto d = program.domain;
  struct Point {
    float x, y;
  };
  struct Shape {
    std::int16_t flag;
    Point at;
    char tag[6];
    std::int32_t three[3];
    Point corners[2];
    std::uint32_t mode;
    std::uint32_t priority;
    std::uint32_t unknown;
  };
  const auto point = registered(d, {{entry("x", NVTX_PAYLOAD_ENTRY_TYPE_FLOAT), entry("y", NVTX_PAYLOAD_ENTRY_TYPE_FLOAT)}});
  const nvtxPayloadEnum_t modes[] = {{"Read", 1, 1}, {"Write", 2, 1}, {"Execute", 4, 1}};
  const nvtxPayloadEnum_t priorities[] = {{"Low", 0, 0}, {"High", 1, 0}};
  const auto mode = registered_enum(d, modes, 4);
  const auto priority = registered_enum(d, priorities, 4);
  const auto schema = registered(
      d, {{entry("flag", NVTX_PAYLOAD_ENTRY_TYPE_INT16), entry("at", point), entry("tag", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, 0, 6),
           entry("three", NVTX_PAYLOAD_ENTRY_TYPE_INT32, NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE, 3),
           entry("corners", point, NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE, 2), entry("mode", mode), entry("priority", priority),
           entry("unknown", priority)},
          NVTX_PAYLOAD_SCHEMA_TYPE_STATIC, sizeof(Shape)});
  // A schema with one field is written as the value of the field.
  const auto boxed = registered(d, {{entry("boxed", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, 0, 3)}});
  const auto names = registered(d, {{entry("names", boxed, NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE, 3)}});
  program.begin();
  mark(d, schema, Shape{-1, {1, 2}, "tag", {4, 5, 6}, {{0, 0.5f}, {7, 8}}, 3, 1, 99});
  const char three_names[] = {'a', 'b', 'c', 'd', 0, 'x', 0, 0, 0};
  mark(d, names, three_names);
  const auto c = program.end();
  CHECK_EQUAL(reasons(c), std::string());
  CHECK_EQUAL(arguments(c)[0], std::string(R"({"flag":-1,"at":{"x":1.0,"y":2.0},"tag":"tag","three":[4,5,6],)"
                                           R"("corners":[{"x":0.0,"y":0.5},{"x":7.0,"y":8.0}],"mode":"Read | Write","priority":"High",)"
                                           R"("unknown":99})"));
  CHECK_EQUAL(arguments(c)[1], std::string(R"({"names":["abc","d",""]})"));
}

TEST(dynamic_schemas_are_read) {
  NvtxProgram program;
  const auto d = program.domain;
  constexpr auto kDynamic = NVTX_PAYLOAD_SCHEMA_TYPE_DYNAMIC;
  constexpr auto kByIndex = NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_LENGTH_INDEX;
  constexpr auto kTerminated = NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_ZERO_TERMINATED;
  const auto counted = registered(d, {{entry("count", NVTX_PAYLOAD_ENTRY_TYPE_INT32), entry("values", NVTX_PAYLOAD_ENTRY_TYPE_INT32, kByIndex, 0)}, kDynamic});
  const auto text = registered(d, {{entry("length", NVTX_PAYLOAD_ENTRY_TYPE_INT32), entry("text", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, kByIndex, 0),
                                    entry("after", NVTX_PAYLOAD_ENTRY_TYPE_UINT16), entry("end", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, kTerminated),
                                    entry("last", NVTX_PAYLOAD_ENTRY_TYPE_UINT8)},
                                   kDynamic});
  const auto matrix = registered(d, {{entry("shape", NVTX_PAYLOAD_ENTRY_TYPE_UINT8, NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE, 2),
                                      entry("cells", NVTX_PAYLOAD_ENTRY_TYPE_UINT16, kByIndex, 0)},
                                     kDynamic});
  const auto outer = registered(d, {{entry("inner", text), entry("behind", NVTX_PAYLOAD_ENTRY_TYPE_UINT8)}, kDynamic});
  const auto zeros = registered(d, {{entry("list", NVTX_PAYLOAD_ENTRY_TYPE_UINT16, kTerminated), entry("after", NVTX_PAYLOAD_ENTRY_TYPE_UINT16)}, kDynamic});
  const auto separate = registered(d, {{entry("data", NVTX_PAYLOAD_ENTRY_TYPE_FLOAT, NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_LENGTH_PAYLOAD_INDEX, 0)}, kDynamic});
  program.begin();
  const std::int32_t four[] = {4, 11, 22, 33, 44}, negative[] = {-1};
  mark(d, counted, four);
  mark(d, counted, negative);
  using namespace std::string_literals;
  mark_bytes(d, text, "\3\0\0\0abc\0\7\0xy\0\11"s);
  mark_bytes(d, matrix, "\2\3\1\0\2\0\3\0\4\0\5\0\6\0"s);
  mark_bytes(d, outer, "\3\0\0\0abc\0\7\0xy\0\11\12"s);
  const std::uint16_t list[] = {5, 6, 0, 7};
  mark(d, zeros, list);
  const std::size_t count = 2;
  const float floats[] = {0.5f, 1.5f};
  const nvtxPayloadData_t both[] = {data(NVTX_PAYLOAD_ENTRY_TYPE_SIZE, count), data(separate, floats)};
  nvtxMarkPayload(d, both, 2);
  const auto c = program.end();
  CHECK_EQUAL(reasons(c), std::string());
  const std::string inner = R"({"length":3,"text":"abc","after":7,"end":"xy","last":9})";
  CHECK(arguments(c) == std::vector<std::string>({R"({"count":4,"values":[11,22,33,44]})", R"({"count":-1,"values":[]})", inner,
                                                  R"({"shape":[2,3],"cells":[1,2,3,4,5,6]})", R"({"inner":)" + inner + R"(,"behind":10})",
                                                  R"({"list":[5,6],"after":7})", R"({"payload":2,"data":[0.5,1.5]})"}));
}

TEST(unions_show_the_chosen_member) {
  NvtxProgram program;
  const auto d = program.domain;
  struct Value {
    std::uint8_t kind;
    union {
      std::int64_t whole;
      double real;
    };
  };
  const auto choice = registered(d, {{entry("whole", NVTX_PAYLOAD_ENTRY_TYPE_INT64), entry("real", NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE)},
                                     NVTX_PAYLOAD_SCHEMA_TYPE_UNION});
  const auto outside = registered(d, {{entry("kind", NVTX_PAYLOAD_ENTRY_TYPE_UINT8), entry("value", choice, 0, 0)}});
  const auto inside = registered(d, {{entry("kind", NVTX_PAYLOAD_ENTRY_TYPE_UNION_SELECTOR), entry("whole", NVTX_PAYLOAD_ENTRY_TYPE_INT64),
                                      entry("real", NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE)},
                                     NVTX_PAYLOAD_SCHEMA_TYPE_UNION_WITH_INTERNAL_SELECTOR, sizeof(Value)});
  const auto several = registered(d, {{entry("all", inside, NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE, 2)}});
  program.begin();
  Value value{};
  value.kind = 0;
  value.whole = -7;
  mark(d, outside, value);
  Value both[2] = {value, value};
  both[0].kind = 1;
  both[1].kind = 2;
  both[1].real = 0.5;
  mark(d, several, both);
  CHECK_EQUAL(reasons(CaptureReader(program.folder.only(), true)), std::string());
  value.kind = 9;
  mark(d, outside, value);
  const auto c = program.end();
  CHECK(arguments(c) == std::vector<std::string>({R"({"kind":0,"value":{"whole":-7}})", R"({"all":[{"whole":-7},{"real":0.5}]})",
                                                  R"({"kind":9,"value":{}})"}));
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_undecoded), std::uint64_t{1});
}

TEST(strings_behind_pointers_are_copied_at_once) {
  NvtxProgram program;
  const auto d = program.domain;
  struct Pointers {
    const char* text;
    const char* none;
    const char16_t* wide;
    std::uint32_t count;
    const std::uint16_t* numbers;
    nvtxStringHandle_t handle;
    const char* part;
  };
  const auto schema = registered(
      d, {{entry("text", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING), entry("none", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING),
           entry("wide", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF16, NVTX_PAYLOAD_ENTRY_FLAG_POINTER | NVTX_PAYLOAD_ENTRY_FLAG_DEEP_COPY),
           entry("count", NVTX_PAYLOAD_ENTRY_TYPE_UINT32),
           entry("numbers", NVTX_PAYLOAD_ENTRY_TYPE_UINT16,
                 NVTX_PAYLOAD_ENTRY_FLAG_POINTER | NVTX_PAYLOAD_ENTRY_FLAG_DEEP_COPY | NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_LENGTH_INDEX, 3),
           entry("handle", NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE),
           entry("part", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, NVTX_PAYLOAD_ENTRY_FLAG_POINTER)},
          NVTX_PAYLOAD_SCHEMA_TYPE_STATIC, sizeof(Pointers), nullptr, NVTX_PAYLOAD_SCHEMA_FLAG_DEEP_COPY});
  const auto pair = registered(d, {{entry("key", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING), entry("value", NVTX_PAYLOAD_ENTRY_TYPE_INT64)}});
  program.begin();
  std::string text(300, 't'), other = "in another payload";
  char16_t wide[] = u"w\u00efde";
  std::uint16_t numbers[] = {1, 2, 3};
  Pointers pointers{text.data(), nullptr, wide, 3, numbers, nvtxDomainRegisterStringA(d, "known"), other.data() + 3};
  const nvtxPayloadData_t parts[] = {data(schema, pointers), {NVTX_TYPE_PAYLOAD_SCHEMA_REFERENCED, other.size() + 1, other.data()}};
  nvtxMarkPayload(d, parts, 2);
  // Arguments as pairs, which several libraries pass.
  struct Pair {
    const char* key;
    std::int64_t value;
  };
  const Pair pairs[] = {{"size", 5}, {"rank", -1}};
  const nvtxPayloadData_t named[] = {data(pair, pairs[0]), data(pair, pairs[1])};
  nvtxMarkPayload(d, named, 2);
  // Unmapped memory does no harm.
  void* const gone = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK_EQUAL(munmap(gone, 4096), 0);
  mark(d, pair, Pair{static_cast<const char*>(gone), 6});
  std::fill(text.begin(), text.end(), 'x');
  std::fill(other.begin(), other.end(), 'x');
  wide[0] = numbers[0] = 0;
  const auto c = program.end();
  CHECK_EQUAL(arguments(c)[0], R"({"text":")" + std::string(300, 't') + R"(","none":null,"wide":"w)" + "\u00ef" +
                                   R"(de","count":3,"numbers":[1,2,3],"handle":"known","part":"another payload"})");
  CHECK_EQUAL(arguments(c)[1], std::string(R"({"size":5,"rank":-1})"));
  CHECK_EQUAL(arguments(c)[2], std::string(R"({"key":null,"value":6})"));
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_undecoded), std::uint64_t{1});
}

TEST(offsets_in_a_payload_are_followed) {
  NvtxProgram program;
  const auto d = program.domain;
  struct Offsets {
    std::uint32_t from_base;
    std::uint32_t from_here;
    char text[16];
  };
  const auto schema = registered(d, {{entry("base", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_BASE),
                                      entry("here", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_HERE, 0, 4),
                                      entry("text", NVTX_PAYLOAD_ENTRY_TYPE_BYTE, NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE | NVTX_PAYLOAD_ENTRY_FLAG_HIDE, 16, 8)},
                                     NVTX_PAYLOAD_SCHEMA_TYPE_STATIC, sizeof(Offsets)});
  program.begin();
  mark(d, schema, Offsets{8, 6, "first\0second"});
  mark(d, schema, Offsets{800, 6, "first\0second"});
  const auto c = program.end();
  CHECK(arguments(c) == std::vector<std::string>({R"({"base":"first","here":"second"})", R"({"here":"second"})"}));
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_undecoded), std::uint64_t{1});
}

TEST(payloads_name_and_color_their_event) {
  NvtxProgram program;
  const auto d = program.domain;
  struct Event {
    nvtxStringHandle_t message;
    std::uint32_t category;
    std::uint32_t color;
    std::int32_t id;
  };
  constexpr auto kMessage = NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE;
  const auto schema = registered(d, {{entry("message", NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE, kMessage),
                                      entry("category", NVTX_PAYLOAD_ENTRY_TYPE_CATEGORY), entry("color", NVTX_PAYLOAD_ENTRY_TYPE_COLOR_ARGB),
                                      entry("id", NVTX_PAYLOAD_ENTRY_TYPE_INT32)}});
  // A schema that other payloads of the event refer to adds no arguments, but may have the message.
  const auto name = registered(d, {{entry("name", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, kMessage | NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_ZERO_TERMINATED)},
                                   NVTX_PAYLOAD_SCHEMA_TYPE_DYNAMIC, 0, nullptr, NVTX_PAYLOAD_SCHEMA_FLAG_REFERENCED});
  program.begin();
  const auto handle = nvtxDomainRegisterStringA(d, "from payload");
  const Event event{handle, 3, 0xff00ff00, 7};
  mark(d, schema, event);
  const nvtxPayloadData_t payload = data(schema, event);
  auto a = attributes("from attributes");
  attach(a, payload);
  a.category = 1;
  nvtxDomainRangePushEx(d, &a);
  const Event at_end{nvtxDomainRegisterStringA(d, "from end"), 4, 0xffff0000, 8};
  const nvtxPayloadData_t ending = data(schema, at_end);
  nvtxRangePopPayload(d, &ending, 1);
  const nvtxPayloadData_t named{name, 6, "named"};
  nvtxRangeEndPayload(d, nvtxRangeStartPayload(d, &named, 1), nullptr, 0);
  const auto c = program.end();
  CHECK_EQUAL(reasons(c), std::string());
  const auto point = c.rows<rows::NvtxMarks>().at(0);
  CHECK(c.text(point.name) == "from payload" && point.category == 3 && point.color == 0xff00ff00 && c.text(point.arguments) == R"({"id":7})");
  const auto ranges = c.rows<rows::NvtxRanges>();
  CHECK(c.text(ranges[0].name) == "from end" && ranges[0].category == 4 && ranges[0].color == 0xffff0000);
  CHECK_EQUAL(c.text(ranges[0].arguments), std::string(R"~({"id":7,"id (end)":8})~"));
  CHECK(c.text(ranges[1].name) == "named" && ranges[1].arguments == 0);
}

TEST(ids_belong_to_their_domain_and_may_come_late) {
  NvtxProgram program;
  const auto d = program.domain;
  const auto other = nvtxDomainCreateA("other");
  const std::uint64_t id = NVTX_PAYLOAD_SCHEMA_ID_STATIC_START + 5;
  CHECK_EQUAL(registered(d, {{entry("bytes", NVTX_PAYLOAD_ENTRY_TYPE_UINT64)}, 1, 0, nullptr, 0, id}), id);
  CHECK_EQUAL(registered(other, {{entry("ratio", NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE)}, 1, 0, nullptr, 0, id}), id);
  CHECK_EQUAL(registered(d, {{entry("bytes", NVTX_PAYLOAD_ENTRY_TYPE_UINT64)}, 1, 0, nullptr, 0, id}), id);  // as NCCL does
  // an id that programs must not choose
  CHECK_EQUAL(registered(d, {{entry("x", NVTX_PAYLOAD_ENTRY_TYPE_UINT64)}, 1, 0, nullptr, 0, 7}), std::uint64_t{0});
  CHECK_EQUAL(registered(d, {{}}), std::uint64_t{0});
  CHECK_EQUAL(registered_enum(d, {}, 3), std::uint64_t{0});
  // A schema may name an enum that is registered later.
  CHECK_EQUAL(registered(d, {{entry("op", id + 2), entry("n", NVTX_PAYLOAD_ENTRY_TYPE_INT32)}, 1, 8, nullptr, 0, id + 1}), id + 1);
  program.begin();
  mark(d, id, std::uint64_t{4096});
  mark(other, id, 0.5);
  mark(nullptr, id, 0.5);  // the default domain has no such schema
  const nvtxPayloadEnum_t ops[] = {{"Sum", 0, 0}, {"Max", 2, 0}};
  CHECK_EQUAL(registered_enum(d, ops, 4, id + 2), id + 2);
  const std::int32_t values[] = {2, 9};
  mark(d, id + 1, values);
  // The last registration of an id counts.
  CHECK_EQUAL(registered(d, {{entry("again", NVTX_PAYLOAD_ENTRY_TYPE_UINT64)}, 1, 0, nullptr, 0, id}), id);
  mark(d, id, std::uint64_t{1});
  const auto c = program.end();
  CHECK(arguments(c) == std::vector<std::string>({R"({"bytes":4096})", R"({"ratio":0.5})", "", R"({"op":"Max","n":9})", R"({"again":1})"}));
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_undecoded), std::uint64_t{1});
  CHECK_EQUAL(reasons(c), std::string("NVTX payloads of a schema that was never registered; "));
}

TEST(what_cannot_be_read_is_counted) {
  NvtxProgram program;
  const auto d = program.domain;
  const auto odd = registered(d, {{entry("known", NVTX_PAYLOAD_ENTRY_TYPE_UINT32), entry("odd", 999), entry("lost", NVTX_PAYLOAD_ENTRY_TYPE_UINT32),
                                   entry("found", NVTX_PAYLOAD_ENTRY_TYPE_UINT32, 0, 0, 12)}});
  const auto large = registered(d, {{entry("n", NVTX_PAYLOAD_ENTRY_TYPE_UINT64), entry("data", NVTX_PAYLOAD_ENTRY_TYPE_UINT8,
                                     NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_LENGTH_INDEX, 0)}, NVTX_PAYLOAD_SCHEMA_TYPE_DYNAMIC});
  const auto two = registered(d, {{entry("a", NVTX_PAYLOAD_ENTRY_TYPE_UINT32), entry("b", NVTX_PAYLOAD_ENTRY_TYPE_UINT64)}});
  program.begin();
  const std::uint32_t words[] = {1, 2, 3, 4};
  mark(d, odd, words);
  mark(d, 500, words);
  mark(d, two, words[0]);
  std::string bytes(20'000, '\1');
  const std::uint64_t count = bytes.size() - 8;
  std::memcpy(bytes.data(), &count, 8);
  mark_bytes(d, large, bytes);
  const std::vector<nvtxPayloadData_t> many(40, data(NVTX_PAYLOAD_ENTRY_TYPE_UINT32, words[0]));
  nvtxMarkPayload(d, many.data(), many.size());
  const nvtxPayloadData_t broken[] = {{two, 0, words}, {two, 16, nullptr}, {odd, ~std::size_t{0}, words}, {1u << 25, ~std::size_t{0}, words}};
  nvtxMarkPayload(d, broken, 4);
  const auto c = program.end();
  const auto said = arguments(c);
  CHECK_EQUAL(said[0], std::string(R"({"known":1,"found":4})"));
  CHECK_EQUAL(said[1], std::string());
  CHECK_EQUAL(said[2], std::string(R"({"a":1})"));
  CHECK(said[3].starts_with(R"({"n":19992,"data":[1,1,)") && said[3].ends_with("1]}"));
  CHECK(said[4].starts_with(R"({"payload":1,"payload 2":1,)") && said[4].ends_with(R"("payload 32":1})"));
  std::map<std::string, std::uint64_t> lost;
  for (const auto& row : c.rows<rows::Losses>()) lost[c.text(row.detail)] += row.count;
  CHECK_EQUAL(lost["fields of NVTX payloads of an unknown type, or behind one"], std::uint64_t{4});
  CHECK_EQUAL(lost["NVTX payloads of the unknown type 500"], std::uint64_t{1});
  CHECK_EQUAL(lost["bytes of NVTX payloads beyond 8192 of one event"], std::uint64_t{20'000 - 8192});
  CHECK(lost["fields beyond the end of NVTX payloads"] >= 2);
  CHECK_EQUAL(lost["NVTX payloads: more than 32 of one event, or of unknown size"], std::uint64_t{9});
}

TEST(hostile_schemas_do_no_harm) {
  NvtxProgram program;
  const auto d = program.domain;
  const std::uint64_t huge = ~std::uint64_t{0};
  std::vector<std::uint64_t> schemas;
  for (const std::uint64_t type : {1ull, 17ull, 75ull, 78ull, 100ull})
    for (const std::uint64_t flags : {0x0ull, 0x2ull, 0x4ull, 0x8ull, 0x10ull, 0x20ull, 0x30ull, 0x40ull, 0x132ull, 0x72ull})
      for (const std::uint64_t detail : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 40, huge})
        for (const std::uint64_t kind : {1, 2, 3, 4})
          schemas.push_back(registered(d, {{entry(nullptr, type, flags, detail), entry("b", type, flags, detail, detail)}, kind, 0, nullptr, 0, 0, 3}));
  // Schemas nested deeper than the limit, and in a circle.
  std::uint64_t nested = schemas[0];
  for (int i = 0; i < 200; ++i) nested = registered(d, {{entry("n", nested), entry("m", 17, 0x30)}, 2});
  schemas.push_back(nested);
  const std::uint64_t first = 1 << 24;
  schemas.push_back(registered(d, {{entry("a", first + 1)}, 1, 0, nullptr, 0, first}));
  schemas.push_back(registered(d, {{entry("b", first)}, 1, 0, nullptr, 0, first + 1}));
  schemas.push_back(registered(d, {{entry("c", first)}, 1, 0, nullptr, 0, first}));
  program.begin();
  std::string bytes(64, '\xff');
  for (const char byte : {'\0', '\1', '\x7f', '\xff'}) {
    std::fill(bytes.begin(), bytes.end(), byte);
    for (const auto schema : schemas)
      for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{64}})
        mark_bytes(d, schema, bytes.substr(0, size));
    CHECK_EQUAL(program.collector.flush(), 0);
  }
  const auto c = program.end();
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_dropped), std::uint64_t{0});
  CHECK_EQUAL(c.rows<rows::NvtxMarks>().size(), schemas.size() * 20);
}

TEST(each_cut_file_has_its_own_arguments) {
  NvtxProgram program;
  const auto d = program.domain;
  const auto schema = registered(d, {{entry("n", NVTX_PAYLOAD_ENTRY_TYPE_INT32)}});
  program.begin();
  mark(d, schema, std::int32_t{1});
  const int two = 2;
  const nvtxPayloadData_t across{schema, sizeof two, &two};
  nvtxRangePushPayload(d, &across, 1);
  CHECK_EQUAL(program.collector.cut((program.folder.path + "/first.bin").c_str()), 0);
  nvtxDomainRangePop(d);
  mark(d, schema, std::int32_t{1});
  CHECK_EQUAL(program.collector.stop(), 0);
  const CaptureReader first(program.folder.path + "/first.bin");
  CHECK(arguments(first) == std::vector<std::string>({R"({"n":1})"}));
  std::filesystem::remove(program.folder.path + "/first.bin");
  const CaptureReader second(program.folder.only());
  CHECK(arguments(second) == std::vector<std::string>({R"({"n":1})"}));
  const auto range = second.rows<rows::NvtxRanges>().at(0);
  CHECK(range.end != 0 && second.text(range.arguments) == R"({"n":2})");
}

TEST(a_full_ring_drops_whole_events_and_counts_them) {
  NvtxProgram program;
  const auto d = program.domain;
  program.begin("flush_ms=10");
  const std::string bytes(8000, 'p');
  std::uint64_t sent = 0;
  while (program.collector.flush() == 0 && program.collector.statistics().nvtx_events == sent && sent < 2'000'000)
    for (int i = 0; i < 2000; ++i, ++sent) mark_bytes(d, NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, bytes);
  const auto c = program.end();
  CHECK(c.lost(rows::Loss::nvtx_dropped) > 0);
  CHECK_EQUAL(c.rows<rows::NvtxMarks>().size() + c.lost(rows::Loss::nvtx_dropped), sent);
  for (const auto& text : arguments(c)) CHECK_EQUAL(text.size(), bytes.size() + 14);
}

TEST(a_forked_child_records_payloads) {
  NvtxProgram program;
  const auto d = program.domain;
  const auto schema = registered(d, {{entry("n", NVTX_PAYLOAD_ENTRY_TYPE_INT32)}});
  program.begin();
  mark(d, schema, std::int32_t{1});
  const pid_t child = fork();
  if (child == 0) {
    mark(d, schema, std::int32_t{2});
    mark(d, registered(d, {{entry("later", NVTX_PAYLOAD_ENTRY_TYPE_INT32)}}), std::int32_t{3});
    const bool stopped = program.collector.stop() == 0;
    _exit(stopped ? 0 : 1);
  }
  int status = 1;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
  CHECK_EQUAL(program.collector.stop(), 0);
  std::size_t seen = 0;
  for (const auto& path : program.folder.captures()) {
    const CaptureReader c(path);
    const bool parent = c.pid == static_cast<std::uint32_t>(getpid());
    const std::vector<std::string> expected = parent ? std::vector<std::string>{R"({"n":1})"} : std::vector<std::string>{R"({"n":2})", R"({"later":3})"};
    CHECK(arguments(c) == expected);
    ++seen;
  }
  CHECK_EQUAL(seen, std::size_t{2});
}

// Like NCCL 2.26 and later. Names of functions are registered once, and schemas at the first call of each function. The payload
// of an initialisation comes with the pop, because it is known only then.
TEST_OF_THREADS(communicators_and_collectives_like_those_of_nccl_are_complete) {
  NvtxProgram program;
  const auto d = nvtxDomainCreateA("NCCL");
  const std::uint64_t first = NVTX_PAYLOAD_SCHEMA_ID_STATIC_START;
  struct Init {
    std::uint64_t communicator;
    int ranks, rank, device;
  };
  struct Reduce {
    std::uint64_t communicator;
    std::size_t bytes;
    int operation;
  };
  program.begin();
  const nvtxPayloadEnum_t operations[] = {{"Sum", 0, 0}, {"Product", 1, 0}, {"Max", 2, 0}, {"Min", 3, 0}, {"Avg", 4, 0}};
  CHECK_EQUAL(registered_enum(d, operations, 4, first + 24), first + 24);
  const auto push = [&](const char* name, const nvtxPayloadData_t* payload) {
    auto a = attributes(nullptr);
    a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    a.message.registered = nvtxDomainRegisterStringA(d, name);
    if (payload != nullptr) attach(a, *payload);
    nvtxDomainRangePushEx(d, &a);
  };
  for (int i = 0; i < 2; ++i) {
    push("ncclCommInitRank", nullptr);
    registered(d, {{entry("NCCL communicator ID", NVTX_PAYLOAD_ENTRY_TYPE_UINT64), entry("No. of ranks", NVTX_PAYLOAD_ENTRY_TYPE_INT, 0, 0, 8),
                    entry("Rank", NVTX_PAYLOAD_ENTRY_TYPE_INT, 0, 0, 12), entry("CUDA device", NVTX_PAYLOAD_ENTRY_TYPE_INT, 0, 0, 16)},
                   1, sizeof(Init), nullptr, 0, first});
    const Init init{0xAAAA + std::uint64_t(i), 2, 1 - i, 1};
    const nvtxPayloadData_t payload = data(first, init);
    CHECK_EQUAL(nvtxRangePopPayload(d, &payload, 1), 0);
  }
  CHECK_EQUAL(program.collector.flush(), 0);
  std::thread backward([&] {
    for (int i = 0; i < 2; ++i) {
      push("ncclGroupStart", nullptr);
      nvtxDomainRangePop(d);
      registered(d, {{entry("NCCL communicator ID", NVTX_PAYLOAD_ENTRY_TYPE_UINT64), entry("Message size [bytes]", NVTX_PAYLOAD_ENTRY_TYPE_SIZE, 0, 0, 8),
                      entry("Reduction operation", first + 24, 0, 0, 16)}, 1, sizeof(Reduce), nullptr, 0, first + 5});
      const Reduce reduce{0xAAAA + std::uint64_t(i), std::size_t(1024) << i, i == 0 ? 0 : 4};
      const nvtxPayloadData_t payload = data(first + 5, reduce);
      push("ncclAllReduce", &payload);
      nvtxDomainRangePop(d);
    }
  });
  backward.join();
  const auto c = program.end();
  CHECK_EQUAL(reasons(c), std::string());
  std::vector<std::string> said;
  for (const auto& row : c.rows<rows::NvtxRanges>()) {
    CHECK(row.end != 0 && row.depth == 0);
    said.push_back(c.text(row.name) + c.text(row.arguments));
  }
  CHECK(said == std::vector<std::string>({R"(ncclCommInitRank{"NCCL communicator ID":43690,"No. of ranks":2,"Rank":1,"CUDA device":1})",
                                          R"(ncclCommInitRank{"NCCL communicator ID":43691,"No. of ranks":2,"Rank":0,"CUDA device":1})",
                                          "ncclGroupStart", R"(ncclAllReduce{"NCCL communicator ID":43690,"Message size [bytes]":1024,"Reduction operation":"Sum"})",
                                          "ncclGroupStart", R"(ncclAllReduce{"NCCL communicator ID":43691,"Message size [bytes]":2048,"Reduction operation":"Avg"})"}));
}

int main(int argc, char** argv) { return check::main(argc, argv); }
