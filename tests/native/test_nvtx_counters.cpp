// Counters and deferred events of NVTX, and the clocks of their times.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "nvtx_program.h"

using namespace cutrace;

namespace {

nvtxSemanticsCounter_t semantics(std::uint64_t flags, const char* unit = nullptr, std::uint64_t numerator = 1, std::uint64_t denominator = 1) {
  nvtxSemanticsCounter_t s{};
  s.header = {sizeof s, NVTX_SEMANTIC_ID_COUNTERS_V1, NVTX_COUNTER_SEMANTIC_VERSION, nullptr};
  s.flags = flags;
  s.unit = unit;
  s.unitScaleNumerator = numerator;
  s.unitScaleDenominator = denominator;
  return s;
}
nvtxSemanticsTime_t time_semantics(std::uint64_t clock, const nvtxSemanticsHeader_t* next = nullptr) {
  nvtxSemanticsTime_t s{};
  s.header = {sizeof s, NVTX_SEMANTIC_ID_TIME_V1, NVTX_TIME_SEMANTIC_VERSION, next};
  s.timeDomainId = clock;
  return s;
}

std::uint64_t counter(nvtxDomainHandle_t domain, const char* name, std::uint64_t schema, const nvtxSemanticsHeader_t* semantics = nullptr,
                      std::uint64_t scope = NVTX_SCOPE_NONE, std::uint64_t id = 0) {
  nvtxCounterAttr_t a{};
  a.structSize = sizeof a;
  a.schemaId = schema;
  a.name = name;
  a.scopeId = scope;
  a.semantics = semantics;
  a.counterId = id;
  return nvtxCounterRegister(domain, &a);
}

// The values of a counter, by its name and series as "name/series".
std::map<std::string, std::vector<double>> values(const CaptureReader& capture) {
  std::map<std::string, std::vector<double>> out;
  for (const auto& row : capture.rows<rows::Counters>()) {
    const std::string& series = capture.text(row.series);
    out[capture.text(row.name) + (series.empty() ? "" : "/" + series)].push_back(row.value);
  }
  return out;
}

std::int64_t clock_now(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

std::uint32_t this_thread() { return static_cast<std::uint32_t>(syscall(SYS_gettid)); }

}  // namespace

TEST(samples_become_values_of_counters) {
  NvtxProgram program;
  const auto d = program.domain;
  const auto bytes = semantics(NVTX_COUNTER_FLAG_VALUETYPE_ABSOLUTE, "bytes", 1024);
  const auto tokens = counter(d, "tokens", NVTX_PAYLOAD_ENTRY_TYPE_INT64);
  const auto used = counter(d, "used", NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE, &bytes.header, NVTX_SCOPE_CURRENT_SW_THREAD);
  CHECK(tokens >= NVTX_COUNTER_ID_DYNAMIC_START);
  const std::uint64_t chosen = NVTX_COUNTER_ID_STATIC_START + 3;
  CHECK_EQUAL(counter(nullptr, "of the default domain", NVTX_PAYLOAD_ENTRY_TYPE_UINT8, nullptr, 0, chosen), chosen);
  CHECK_EQUAL(counter(d, "x", NVTX_PAYLOAD_ENTRY_TYPE_UINT8, nullptr, 0, 5), std::uint64_t{NVTX_COUNTER_ID_NONE});
  nvtxCounterSampleInt64(d, tokens, 1);  // before the recording
  program.begin();
  const std::uint64_t before = program.collector.now();
  nvtxCounterSampleInt64(d, tokens, -5);
  nvtxCounterSampleFloat64(d, used, 2.5);
  const std::uint8_t small = 200;
  nvtxCounterSample(nullptr, chosen, &small, sizeof small);
  nvtxCounterSampleNoValue(d, tokens, NVTX_COUNTER_SAMPLE_UNCHANGED);
  nvtxCounterSampleNoValue(d, tokens, NVTX_COUNTER_SAMPLE_ZERO);
  nvtxCounterSampleNoValue(d, tokens, NVTX_COUNTER_SAMPLE_UNAVAILABLE);
  nvtxCounterSampleNoValue(d, used, NVTX_COUNTER_SAMPLE_UNCHANGED);
  const auto c = program.end();
  CHECK_EQUAL(reasons(c), std::string());
  auto found = values(c);
  CHECK(std::isnan(found["tokens"].back()));
  found["tokens"].pop_back();
  CHECK(found["tokens"] == std::vector<double>({-5, -5, 0}) && found["used"] == std::vector<double>({2560, 2560}));
  CHECK(found["of the default domain"] == std::vector<double>({200}));
  std::uint64_t last = before;
  for (const auto& row : c.rows<rows::Counters>()) {
    CHECK(row.time >= last && row.device == 0xFFFF);
    last = row.time;
    const bool is_used = c.text(row.name) == "used";
    CHECK(row.thread == (is_used ? this_thread() : 0) && c.text(row.unit) == (is_used ? "bytes" : ""));
    CHECK_EQUAL(c.text(row.category), std::string(c.text(row.name) == "of the default domain" ? "nvtx" : "nvtx.d"));
  }
}

TEST(groups_have_a_series_for_each_counter) {
  NvtxProgram program;
  const auto d = program.domain;
  constexpr auto kCounter = NVTX_PAYLOAD_ENTRY_FLAG_COUNTER;
  const auto percent = semantics(NVTX_COUNTER_FLAG_NORMALIZE, "%"), difference = semantics(NVTX_COUNTER_FLAG_VALUETYPE_DELTA, "events");
  struct Memory {
    std::int64_t allocated;
    std::uint8_t load;
    std::int8_t balance;
    std::uint16_t note;
    std::uint32_t new_events;
    float cores[2];
  };
  const auto schema = registered(
      d, {{entry("allocated", NVTX_PAYLOAD_ENTRY_TYPE_INT64, kCounter), entry("load", NVTX_PAYLOAD_ENTRY_TYPE_UINT8, kCounter, 0, 0, &percent.header),
           entry("balance", NVTX_PAYLOAD_ENTRY_TYPE_INT8, kCounter, 0, 0, &percent.header), entry("note", NVTX_PAYLOAD_ENTRY_TYPE_UINT16),
           entry("new", NVTX_PAYLOAD_ENTRY_TYPE_UINT32, kCounter, 0, 0, &difference.header),
           entry("cores", NVTX_PAYLOAD_ENTRY_TYPE_FLOAT, kCounter | NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE, 2)},
          NVTX_PAYLOAD_SCHEMA_TYPE_STATIC, sizeof(Memory), nullptr, NVTX_PAYLOAD_SCHEMA_FLAG_COUNTER_GROUP});
  const auto inner = registered(d, {{entry("value", NVTX_PAYLOAD_ENTRY_TYPE_INT32)}});
  const auto unmarked = registered(d, {{entry("a", inner), entry("b", inner)}});
  const auto memory = counter(d, "memory", schema), pair = counter(d, nullptr, unmarked);
  nvtxScopeAttr_t scope{sizeof scope, "/node/GPU[CUDAID:1]", NVTX_SCOPE_ROOT, NVTX_SCOPE_NONE};
  const auto gpu = nvtxScopeRegister(d, &scope);
  nvtxScopeAttr_t below{sizeof below, "die", gpu, NVTX_SCOPE_NONE};
  const auto power = counter(d, "power", NVTX_PAYLOAD_ENTRY_TYPE_UINT32, nullptr, nvtxScopeRegister(d, &below));
  program.begin();
  for (const std::uint32_t more : {3u, 4u}) {
    const Memory sample{100, 255, -127, 9, more, {0.5f, 1.5f}};
    nvtxCounterSample(d, memory, &sample, sizeof sample);
  }
  const std::int32_t two[] = {1, 2};
  nvtxCounterSample(d, pair, two, sizeof two);
  const std::uint32_t watts = 300;
  nvtxCounterSample(d, power, &watts, sizeof watts);
  const auto c = program.end();
  CHECK_EQUAL(reasons(c), std::string());
  const std::map<std::string, std::vector<double>> expected = {
      {"memory/allocated", {100, 100}}, {"memory/load", {1, 1}},   {"memory/balance", {-1, -1}},        {"memory/new", {3, 7}},
      {"memory/cores[0]", {0.5, 0.5}},  {"memory/cores[1]", {1.5, 1.5}}, {"a", {1}}, {"b", {2}}, {"power (node/GPU[CUDAID:1]/die)", {300}}};
  CHECK(values(c) == expected);
  for (const auto& row : c.rows<rows::Counters>()) {
    CHECK_EQUAL(row.device, c.text(row.name).starts_with("power") ? 1 : 0xFFFF);
    if (c.text(row.series) == "new") CHECK(c.text(row.unit) == "events");
  }
}

TEST(batches_keep_the_times_of_the_program) {
  NvtxProgram program;
  const auto d = program.domain;
  const auto monotonic = time_semantics(NVTX_TIMESTAMP_TYPE_CPU_CLOCK_GETTIME_MONOTONIC), tsc = time_semantics(NVTX_TIMESTAMP_TYPE_CPU_TSC);
  const auto plain = counter(d, "plain", NVTX_PAYLOAD_ENTRY_TYPE_INT64);
  const auto shifted = counter(d, "shifted", NVTX_PAYLOAD_ENTRY_TYPE_INT64, &monotonic.header);
  const auto cycles = counter(d, "cycles", NVTX_PAYLOAD_ENTRY_TYPE_INT64, &tsc.header);
  const auto stamped = registered(d, {{entry("at", NVTX_PAYLOAD_ENTRY_TYPE_INT64, NVTX_PAYLOAD_ENTRY_FLAG_TIMESTAMP), entry("n", NVTX_PAYLOAD_ENTRY_TYPE_INT64)}});
  const auto own_times = counter(d, "own", stamped);
  program.begin();
  sleep_ms(20);  // the recording has all times below
  const auto submit = [&](std::uint64_t id, const std::vector<std::int64_t>& samples, const std::vector<std::int64_t>& times, std::uint64_t flags = 0) {
    const nvtxCounterBatch_t batch{id, samples.data(), samples.size() * 8, flags, times.empty() ? nullptr : times.data(), times.size() * 8};
    nvtxCounterBatchSubmit(d, &batch);
  };
  const std::int64_t now = nvtxTimestampGet();
  CHECK(std::abs(now - static_cast<std::int64_t>(program.collector.now())) < 1'000'000'000);
  submit(plain, {1, 2, 3}, {now - 30, now - 20, now - 10});
  submit(plain, {4, 5}, {now - 1000, 7}, NVTX_COUNTER_BATCH_FLAG_BEGINTIME_INTERVAL_PAIR);
  submit(plain, {6, 7}, {now - 2000, 5}, NVTX_COUNTER_BATCH_FLAG_ENDTIME_INTERVAL_PAIR);
  submit(own_times, {now - 3000, 8, now - 2990, 9}, {});
  const std::int64_t then = clock_now(CLOCK_MONOTONIC);
  const std::int64_t boot = clock_now(CLOCK_BOOTTIME);
  submit(shifted, {1}, {then});
#if defined(__x86_64__)
  const std::uint64_t low = program.collector.now();
  const auto read = static_cast<std::int64_t>(__builtin_ia32_rdtsc());
  const std::uint64_t high = program.collector.now();
  sleep_ms(20);
  submit(cycles, {1}, {read});
#endif
  const auto c = program.end();
  CHECK_EQUAL(reasons(c), std::string());
  std::map<std::string, std::vector<std::pair<std::int64_t, double>>> found;
  for (const auto& row : c.rows<rows::Counters>()) found[c.text(row.name)].push_back({static_cast<std::int64_t>(row.time), row.value});
  const std::vector<std::pair<std::int64_t, double>> expected = {{now - 30, 1},   {now - 20, 2},  {now - 10, 3},  {now - 1000, 4},
                                                                 {now - 993, 5}, {now - 2005, 6}, {now - 2000, 7}};
  CHECK(found["plain"] == expected);
  CHECK((found["own"] == std::vector<std::pair<std::int64_t, double>>{{now - 3000, 8}, {now - 2990, 9}}));
  CHECK(std::abs(found["shifted"].at(0).first - boot) < 1'000'000);
#if defined(__x86_64__)
  // The error equals the error of two readings of the counter some milliseconds apart.
  CHECK(found["cycles"].at(0).first > static_cast<std::int64_t>(low) - 1'000'000 && found["cycles"].at(0).first < static_cast<std::int64_t>(high) + 1'000'000);
#endif
}

TEST(samples_from_before_the_recording_are_left_out) {
  NvtxProgram program;
  const auto d = program.domain;
  const auto timed = counter(d, "timed", NVTX_PAYLOAD_ENTRY_TYPE_INT64);
  const std::int64_t before = nvtxTimestampGet();
  program.begin();
  const std::int64_t now = nvtxTimestampGet();
  const std::int64_t samples[] = {1, 2, 3, 4};
  const std::int64_t times[] = {7, before, now, now + 3'600'000'000'000};
  const nvtxCounterBatch_t batch{timed, samples, sizeof samples, 0, times, sizeof times};
  nvtxCounterBatchSubmit(d, &batch);
  const auto c = program.end();
  CHECK(values(c)["timed"] == std::vector<double>({3}));
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_undecoded), std::uint64_t{1});  // the batch that is still to come
}

TEST(samples_that_cannot_be_read_are_counted) {
  NvtxProgram program;
  const auto d = program.domain;
  const auto text = registered(d, {{entry("text", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, 0, 8)}});
  const auto no_number = counter(d, "text", text), fine = counter(d, "fine", NVTX_PAYLOAD_ENTRY_TYPE_INT64);
  const auto gpu = time_semantics(NVTX_TIMESTAMP_TYPE_GPU_GLOBALTIMER);
  const auto timed = counter(d, "timed", NVTX_PAYLOAD_ENTRY_TYPE_INT64, &gpu.header);
  program.begin("max_memory=16777216");
  nvtxCounterSampleInt64(d, 12345, 1);
  nvtxCounterSample(d, no_number, "12345678", 8);
  nvtxCounterSample(d, fine, "123", 3);
  nvtxCounterSample(d, fine, nullptr, 8);
  nvtxCounterSampleNoValue(d, fine, NVTX_COUNTER_SAMPLE_UNCHANGED);
  const std::int64_t values[] = {1, 2};
  const nvtxCounterBatch_t batch{timed, values, sizeof values, 0, values, sizeof values};
  nvtxCounterBatchSubmit(d, &batch);
  const std::vector<std::int64_t> many(4 << 20);
  const nvtxCounterBatch_t large{fine, many.data(), many.size() * 8, 0, many.data(), many.size() * 8};
  nvtxCounterBatchSubmit(d, &large);
  nvtxCounterBatchSubmit(d, nullptr);
  const auto c = program.end();
  std::map<std::string, std::uint64_t> lost;
  for (const auto& row : c.rows<rows::Losses>()) lost[c.text(row.detail)] += row.count;
  const std::map<std::string, std::uint64_t> expected = {{"samples of NVTX counters that were never registered", 1},
                                                         {"samples of NVTX counters without a number", 2},
                                                         {"samples of NVTX counters that are unchanged before the first value", 1},
                                                         {"samples of NVTX counters with times of an unknown clock", 2},
                                                         {"batches of NVTX events or counter samples", 1}};
  CHECK(lost == expected);
  CHECK(c.rows<rows::Counters>().empty());
}

TEST(deferred_events_are_where_they_were) {
  NvtxProgram program;
  const auto d = program.domain;
  constexpr auto kTime = NVTX_PAYLOAD_ENTRY_FLAG_TIMESTAMP;
  nvtxScopeAttr_t scope{sizeof scope, "device/queue", NVTX_SCOPE_NONE, NVTX_SCOPE_ID_STATIC_START + 1};
  const auto queue = nvtxScopeRegister(d, &scope);
  CHECK_EQUAL(queue, std::uint64_t{NVTX_SCOPE_ID_STATIC_START + 1});
  nvtxSemanticsScope_t in_queue{{sizeof in_queue, NVTX_SEMANTIC_ID_SCOPE_V1, 1, nullptr}, queue};
  const auto boottime = time_semantics(NVTX_TIMESTAMP_TYPE_CPU_CLOCK_GETTIME_BOOTTIME, &in_queue.header);
  struct Range {
    std::int64_t start, end;
    nvtxStringHandle_t message;
    std::uint32_t thread;
    std::int32_t n;
  };
  const std::vector<Entry> fields = {entry("start", NVTX_PAYLOAD_ENTRY_TYPE_INT64, kTime | NVTX_PAYLOAD_ENTRY_FLAG_RANGE_BEGIN, 0, 0, &boottime.header),
                                     entry("end", NVTX_PAYLOAD_ENTRY_TYPE_INT64, kTime | NVTX_PAYLOAD_ENTRY_FLAG_RANGE_END, 0, 0, &boottime.header),
                                     entry("message", NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE, NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE),
                                     entry("thread", NVTX_PAYLOAD_ENTRY_TYPE_TID_UINT32), entry("n", NVTX_PAYLOAD_ENTRY_TYPE_INT32)};
  const auto pushed = registered(d, {fields, 1, sizeof(Range), nullptr, NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_PUSHPOP});
  const auto mark = registered(d, {{entry("at", NVTX_PAYLOAD_ENTRY_TYPE_INT64, kTime | NVTX_PAYLOAD_ENTRY_FLAG_MARK),
                                    entry("name", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8, NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE, 6)},
                                   1, 16, nullptr, NVTX_PAYLOAD_SCHEMA_FLAG_MARK});
  program.begin();
  const auto name = nvtxDomainRegisterStringA(d, "device work");
  const std::int64_t now = nvtxTimestampGet();
  const Range ranges[] = {{now - 300, now - 200, name, 77, 1}, {now - 250, now - 100, name, 78, 2}};
  nvtxEventBatch_t batch{};
  batch.eventSchemaId = pushed;
  batch.size = sizeof ranges;
  batch.events = ranges;
  nvtxEventBatchSubmit(d, &batch);
  struct Mark {
    std::int64_t at;
    char name[8];
  };
  const Mark point{now - 50, "moment"};
  const nvtxPayloadData_t payload[] = {{mark, sizeof point, &point}, {NVTX_PAYLOAD_ENTRY_TYPE_INT32, 4, &ranges[0].n}};
  nvtxEventSubmit(d, payload, 2);
  const auto c = program.end();
  CHECK_EQUAL(reasons(c), std::string());
  const auto rows = c.rows<rows::NvtxRanges>();
  CHECK_EQUAL(rows.size(), std::size_t{2});
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& row = rows[i];
    CHECK(row.start == static_cast<std::uint64_t>(ranges[i].start) && row.end == static_cast<std::uint64_t>(ranges[i].end));
    CHECK(row.thread == ranges[i].thread && row.end_thread == row.thread && row.kind == 0 && row.flags == 0);
    CHECK(c.text(row.name) == "device work" && c.text(row.domain) == "d");
    CHECK_EQUAL(c.text(row.arguments), R"({"n":)" + std::to_string(i + 1) + R"(,"scope":"device/queue"})");
  }
  const auto marks = c.rows<rows::NvtxMarks>();
  CHECK(marks.size() == 1 && marks[0].time == static_cast<std::uint64_t>(now - 50) && marks[0].thread == 0);
  CHECK(c.text(marks[0].name) == "moment" && c.text(marks[0].arguments) == R"({"payload":1})");
}

TEST(deferred_begins_and_ends_make_ranges) {
  NvtxProgram program;
  const auto d = program.domain;
  struct Half {
    std::int64_t at;
    std::uint64_t id;
    std::uint64_t scope;
  };
  const auto half = [&](std::uint64_t kind, const char* field) {
    return registered(d, {{entry("at", NVTX_PAYLOAD_ENTRY_TYPE_INT64, NVTX_PAYLOAD_ENTRY_FLAG_TIMESTAMP), entry(field, NVTX_PAYLOAD_ENTRY_TYPE_RANGE_ID),
                           entry("scope", NVTX_PAYLOAD_ENTRY_TYPE_SCOPE_ID)},
                          1, sizeof(Half), nullptr, kind});
  };
  const auto start = half(NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_START, "id"), end = half(NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_END, "id"),
             push = half(NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_PUSH, "id"), pop = half(NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_POP, "id");
  program.begin();
  const std::int64_t now = nvtxTimestampGet();
  const auto submit = [&](std::uint64_t schema, std::int64_t at, std::uint64_t id) {
    const Half event{now + at, id, NVTX_SCOPE_CURRENT_SW_THREAD};
    const nvtxPayloadData_t payload{schema, sizeof event, &event};
    nvtxEventSubmit(d, &payload, 1);
  };
  submit(start, -100, 1);
  submit(start, -90, 2);
  submit(end, -80, 1);
  submit(end, -70, 2);
  submit(push, -60, 0);
  submit(push, -50, 0);
  submit(pop, -40, 0);
  submit(pop, -30, 0);
  submit(pop, -20, 0);   // no start
  submit(start, -10, 3);  // no end
  const auto c = program.end();
  std::vector<std::vector<std::int64_t>> found;
  for (const auto& row : c.rows<rows::NvtxRanges>()) {
    const std::int64_t finish = row.end != 0 ? static_cast<std::int64_t>(row.end) - now : 0;
    found.push_back({static_cast<std::int64_t>(row.start) - now, finish, row.kind});
    CHECK_EQUAL(row.thread, this_thread());
  }
  CHECK((found == std::vector<std::vector<std::int64_t>>{{-100, -80, 1}, {-90, -70, 1}, {-50, -40, 0}, {-60, -30, 0}, {-10, 0, 1}}));
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_unmatched_pop), std::uint64_t{1});
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_open), std::uint64_t{1});
}

TEST(open_deferred_ranges_are_bounded) {
  NvtxProgram program;
  const auto d = program.domain;
  struct Begin {
    std::int64_t at;
    std::uint64_t id;
  };
  const auto schema = registered(d, {{entry("at", NVTX_PAYLOAD_ENTRY_TYPE_INT64, NVTX_PAYLOAD_ENTRY_FLAG_TIMESTAMP), entry("id", NVTX_PAYLOAD_ENTRY_TYPE_RANGE_ID)},
                                     1, sizeof(Begin), nullptr, NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_START});
  program.begin("max_memory=16777216");
  constexpr std::uint64_t kBegins = 20'000;
  for (std::uint64_t i = 0; i < kBegins; ++i) {
    const Begin event{nvtxTimestampGet(), i};
    const nvtxPayloadData_t payload{schema, sizeof event, &event};
    nvtxEventSubmit(d, &payload, 1);
    if (i % 500 == 0) CHECK_EQUAL(program.collector.flush(), 0);
  }
  nvtxRangePushA("outer");
  nvtxRangePushA("inner");
  nvtxRangePop();
  nvtxRangePop();
  CHECK_EQUAL(program.collector.flush(), 0);
  CHECK(program.collector.statistics().memory_bytes < 16 << 20);
  const auto c = program.end();
  std::uint64_t closed = 0;
  for (const auto& row : c.rows<rows::NvtxRanges>()) closed += row.end != 0;
  CHECK_EQUAL(closed, std::uint64_t{2});
  CHECK(c.lost(rows::Loss::memory_limit) > 0);
  CHECK_EQUAL(c.lost(rows::Loss::memory_limit) + c.lost(rows::Loss::nvtx_open), kBegins);
}

TEST(batches_of_dynamic_events_are_split) {
  NvtxProgram program;
  const auto d = program.domain;
  const auto schema = registered(d, {{entry("at", NVTX_PAYLOAD_ENTRY_TYPE_INT64, NVTX_PAYLOAD_ENTRY_FLAG_TIMESTAMP | NVTX_PAYLOAD_ENTRY_FLAG_MARK),
                                      entry("name", NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_BASE | NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE),
                                      entry("length", NVTX_PAYLOAD_ENTRY_TYPE_UINT64),
                                      entry("list", NVTX_PAYLOAD_ENTRY_TYPE_UINT64, NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_LENGTH_INDEX, 2)},
                                     NVTX_PAYLOAD_SCHEMA_TYPE_DYNAMIC, 0, nullptr, NVTX_PAYLOAD_SCHEMA_FLAG_MARK});
  program.begin();
  const auto now = static_cast<std::uint64_t>(nvtxTimestampGet());
  const std::uint64_t events[] = {now - 3, 0, 2, 10, 11, now - 2, 6, 0, now - 1, 0, 5};  // the last sample is truncated
  const char names[] = "first\0second";
  nvtxEventBatch_t batch{};
  batch.eventSchemaId = schema;
  batch.size = sizeof events;
  batch.events = events;
  batch.flexData = names;
  batch.flexDataSize = sizeof names;
  nvtxEventBatchSubmit(d, &batch);
  batch.eventSchemaId = 99;
  nvtxEventBatchSubmit(d, &batch);
  const auto c = program.end();
  std::vector<std::string> found;
  for (const auto& row : c.rows<rows::NvtxMarks>()) found.push_back(c.text(row.name) + c.text(row.arguments));
  CHECK((found == std::vector<std::string>{R"(first{"length":2,"list":[10,11]})", R"(second{"length":0,"list":[]})"}));
  CHECK(c.lost(rows::Loss::nvtx_undecoded) >= 2);
}

TEST(times_of_the_programs_clocks_are_converted) {
  static std::atomic<std::int64_t> ticks{0};
  NvtxProgram program;
  const auto d = program.domain;
  const auto clock = [&](std::uint64_t type, std::int64_t resolution, std::uint64_t start) {
    const nvtxTimeDomainAttr_t a{NVTX_SCOPE_NONE, type, 0, 0, resolution, start};
    return nvtxTimeDomainRegister(d, &a);
  };
  std::vector<nvtxSemanticsTime_t> all;
  all.reserve(16);
  const auto counter_of = [&](const char* name, std::uint64_t id) {
    all.push_back(time_semantics(id));
    return counter(d, name, NVTX_PAYLOAD_ENTRY_TYPE_INT64, &all.back().header);
  };
  const auto points = clock(0, 0, 0), chained = clock(0, 0, 0), single = clock(0, 1'000'000, 0), factor = clock(0, 0, 0), unknown = clock(0, 0, 0),
             boot = clock(0, 1000, NVTX_TIMER_START_SYSTEM_BOOT), epoch = clock(0, 1'000'000'000, NVTX_TIMER_START_UNIX_EPOCH),
             alias = clock(NVTX_TIMESTAMP_TYPE_CPU_CLOCK_GETTIME_REALTIME, 0, 0), timer = clock(0, 0, 0);
  CHECK(points >= NVTX_TIME_DOMAIN_ID_DYNAMIC_START && points != chained);
  program.begin();
  sleep_ms(20);  // the recording has all times below
  const std::int64_t now = nvtxTimestampGet();
  constexpr auto kTool = NVTX_TIMESTAMP_TYPE_TOOL_PROVIDED;
  // 10 ns a unit, from now - 1000 on.
  const nvtxSyncPoint_t table[] = {{0, now - 1000}, {50, now - 500}};
  nvtxTimeSyncPointTable(d, points, kTool, table, 2);
  nvtxTimeSyncPoint(d, kTool, single, now - 5'000'000, 7);  // 1 us per unit, known from its resolution
  nvtxTimeSyncPoint(d, chained, points, 1000, 0);           // one unit is half a unit of `points`
  nvtxTimeSyncPoint(d, chained, points, 1100, 50);
  nvtxTimestampConversionFactor(d, factor, kTool, 2.5, 100, now - 1000);
  nvtxTimeSyncPoint(d, unknown, kTool, 1, now);  // one point of a clock of unknown rate
  // A clock that the collector can read: 100 ns a tick.
  ticks = now / 100;
  nvtxTimerSource(d, timer, NVTX_TIMER_SOURCE_SAFE_CALL_AFTER_PROCESS_TEARDOWN, +[]() -> std::int64_t { return nvtxTimestampGet() / 100; });
  const auto submit = [&](const char* name, std::uint64_t id, std::int64_t time) {
    const auto made = counter_of(name, id);
    const std::int64_t value = 1;
    const nvtxCounterBatch_t batch{made, &value, 8, 0, &time, 8};
    nvtxCounterBatchSubmit(d, &batch);
  };
  submit("points", points, 20);
  submit("points before", points, -20);
  submit("chained", chained, 1010);
  submit("single", single, 8);
  submit("factor", factor, 120);
  submit("boot", boot, now / 1'000'000);
  submit("epoch", epoch, clock_now(CLOCK_REALTIME));
  submit("alias", alias, clock_now(CLOCK_REALTIME));
  submit("steady", NVTX_TIMESTAMP_TYPE_CPP_STEADY_CLOCK, clock_now(CLOCK_MONOTONIC));
  submit("high", NVTX_TIMESTAMP_TYPE_CPP_HIGH_RESOLUTION_CLOCK, clock_now(CLOCK_REALTIME));
  submit("high too", NVTX_TIMESTAMP_TYPE_CPP_HIGH_RESOLUTION_CLOCK, clock_now(CLOCK_MONOTONIC));
  sleep_ms(5);
  submit("timer", timer, nvtxTimestampGet() / 100);
  submit("unknown", unknown, 2);
  submit("none", NVTX_TIMESTAMP_TYPE_NONE, now);
  submit("processor time", NVTX_TIMESTAMP_TYPE_CPU_CLOCK_GETTIME_THREAD_CPUTIME_ID, 5);
  submit("extreme", points, std::numeric_limits<std::int64_t>::min());
  submit("extreme too", single, std::numeric_limits<std::int64_t>::max());
  const auto c = program.end();
  std::map<std::string, std::int64_t> found;
  for (const auto& row : c.rows<rows::Counters>()) found[c.text(row.name)] = static_cast<std::int64_t>(row.time) - now;
  CHECK(found["points"] == -800 && found["points before"] == -1200 && found["chained"] == -950 && found["single"] == -4'999'000);
  CHECK_EQUAL(found["factor"], std::int64_t{-950});
  CHECK(std::abs(found["boot"]) <= 1'000'000);
  for (const char* close : {"epoch", "alias", "steady", "high", "high too", "timer"}) CHECK(found.count(close) == 1 && std::abs(found[close]) < 1'000'000'000);
  CHECK_EQUAL(found.size(), std::size_t{12});
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_undecoded), std::uint64_t{5});
}

TEST_OF_THREADS(counters_of_many_threads_all_arrive_or_are_counted) {
  NvtxProgram program;
  const auto d = program.domain;
  const auto shared = counter(d, "shared", NVTX_PAYLOAD_ENTRY_TYPE_INT64, nullptr, NVTX_SCOPE_CURRENT_SW_THREAD);
  program.begin("flush_ms=10");
  constexpr int kThreads = 4, kEach = 20'000;
  nvtxTimestampGet();  // the first call of a module writes variables of NVTX's headers that all threads read
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        nvtxCounterSampleInt64(d, shared, i);
        if (i % 1000 == 0) {
          const std::int64_t times[] = {nvtxTimestampGet(), nvtxTimestampGet()};
          const nvtxCounterBatch_t batch{shared, times, sizeof times, 0, times, sizeof times};
          nvtxCounterBatchSubmit(d, &batch);
        }
      }
    });
  for (auto& thread : threads) thread.join();
  const auto c = program.end();
  const std::uint64_t dropped = c.lost(rows::Loss::nvtx_dropped);
  const std::uint64_t rows = c.rows<rows::Counters>().size();
  // A dropped event is one sample, or a batch of two samples.
  CHECK(rows + dropped <= kThreads * (kEach + 2 * kEach / 1000) && rows + 2 * dropped >= kThreads * (kEach + 2 * kEach / 1000));
}

int main(int argc, char** argv) { return check::main(argc, argv); }
