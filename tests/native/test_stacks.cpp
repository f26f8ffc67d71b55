// Python stacks: frames of a fake interpreter, the tables of threads, and the writer's part.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "capture_reader.h"
#include "check.h"
#include "collector/core/feature.h"
#include "collector/features/stacks/code_deaths.h"
#include "collector/features/stacks/interpreter_check.h"
#include "collector/features/stacks/stack_counts.h"
#include "collector/features/stacks/stack_decoder.h"
#include "collector/features/stacks/stack_events.h"
#include "collector/features/stacks/thread_stacks.h"
#include "fake_python.h"

using namespace cutrace;
using namespace cutrace::python;
using fake_python::Code;
using fake_python::Frames;

namespace {

constexpr std::size_t kMemory = std::size_t{8} << 20;

// Keeps definitions as the writer does.
struct Reader final : StackSink {
  bool forget() override {
    if (full) return false;
    frames.clear();
    nodes.clear();
    ++forgotten;
    return true;
  }
  bool define_frame(std::uint32_t number, const FrameText& text) override {
    if (full) return false;
    if (in_definition) in_definition();
    std::string frame(text.file_name());
    frame += ':' + std::string(text.function_name()) + ':' + std::to_string(text.line);
    CHECK(frames.emplace(number, frame).second);
    ++defined;
    return true;
  }
  bool define_stack(std::uint32_t number, std::uint32_t parent, std::uint32_t frame) override {
    if (full) return false;
    CHECK((parent == 0 || nodes.contains(parent)) && frames.contains(frame));
    CHECK(nodes.emplace(number, std::pair(parent, frame)).second);
    return true;
  }

  CapturedStack take(std::size_t memory = kMemory) { return capture_stack(*this, {this, recording}, memory); }
  // "file:function:line" of each frame, outermost first, or the reason for a missing stack.
  std::string stack(std::size_t memory = kMemory) {
    const CapturedStack captured = take(memory);
    CHECK((captured.result == Captured::stack) == (captured.number != 0));
    if (captured.number == 0) return "none: " + std::to_string(static_cast<int>(captured.result));
    std::string path;
    for (std::uint32_t node = captured.number; node != 0; node = nodes.at(node).first)
      path = frames.at(nodes.at(node).second) + (path.empty() ? "" : " ") + path;
    return path;
  }

  std::map<std::uint32_t, std::string> frames;
  std::map<std::uint32_t, std::pair<std::uint32_t, std::uint32_t>> nodes;
  std::function<void()> in_definition;
  static inline std::atomic<std::uint32_t> readers{0};
  std::uint32_t recording = ++readers << 16;  // a new object, also at the address of an earlier one
  unsigned forgotten = 0, defined = 0;
  bool full = false;
};

std::string none(Captured why) { return "none: " + std::to_string(static_cast<int>(why)); }

void on_thread(const std::function<void()>& body) { std::thread(body).join(); }

}  // namespace

// ---- frames ----

TEST(frames_of_all_versions_have_file_function_and_line) {
  for (const std::uint32_t minor : {10u, 11u, 12u, 13u, 14u, 15u}) {
    fake_python::install(minor);
    const Code outer("train.py", "main", 7), inner("model.py", "Model.step", 90);
    Frames frames;
    frames.enter(outer);
    frames.enter(inner, 19);
    Reader reader;
    CHECK_EQUAL(reader.stack(), "train.py:main:7 model.py:Model.step:90");
  }
}

TEST(entries_of_the_interpreter_and_frames_that_have_not_begun_are_hidden) {
  fake_python::install(13);
  const Code code("a.py", "f", 1);
  Frames frames;
  frames.enter(code);
  frames.enter(code, 4, 3);  // owned by the interpreter's C stack
  frames.enter(code, 1);     // before the first instruction that can be traced
  Reader reader;
  CHECK_EQUAL(reader.stack(), "a.py:f:1");
  frames.enter(code, 1, kOwnedByGenerator);  // a generator that gets an exception before its start
  CHECK_EQUAL(reader.stack(), "a.py:f:1 a.py:f:1");
  frames.leave_all();
  frames.enter(code, 1);
  CHECK_EQUAL(reader.stack(), none(Captured::no_python));
}

TEST(lines_of_the_location_table) {
  fake_python::install(12);
  const auto line_at = [](std::string_view table, std::uint32_t instruction) {
    const Code code("a.py", "f", 100, table);
    Frames frames;
    frames.enter(code, instruction);
    Reader reader;
    return reader.stack();
  };
  using namespace std::string_view_literals;
  // Short form, 8 instructions on line 100; one line further (kind 11); none (15); long form, line -3.
  constexpr std::string_view kTable = "\x87\x00\xDF\x00\x00\xFB\xF7\x07\x00\x00\x00"sv;
  CHECK_EQUAL(line_at(kTable, 7), "a.py:f:100");
  CHECK_EQUAL(line_at(kTable, 8), "a.py:f:101");
  CHECK_EQUAL(line_at(kTable, 17), "a.py:f:0");
  CHECK_EQUAL(line_at(kTable, 20), "a.py:f:98");
  CHECK_EQUAL(line_at(kTable, 200), "a.py:f:0");
  // Varints of several bytes: + 70,000 lines.
  CHECK_EQUAL(line_at("\xEF\x60\x4B\x22"sv, 3), "a.py:f:70100");
}

TEST(lines_of_3_10) {
  fake_python::install(10);
  using namespace std::string_view_literals;
  constexpr std::string_view kTable = "\x08\x00\x00\x7F\x08\x03\x04\x80\x08\xFE"sv;
  const Code code("a.py", "f", 100, kTable);
  Frames frames;
  frames.enter(code, 3);
  Reader reader;
  CHECK_EQUAL(reader.stack(), "a.py:f:100");
  frames.go_on(code, 4);
  CHECK_EQUAL(reader.stack(), "a.py:f:230");
  frames.go_on(code, 9);
  CHECK_EQUAL(reader.stack(), "a.py:f:0");
  frames.go_on(code, 12);
  CHECK_EQUAL(reader.stack(), "a.py:f:228");
}

TEST(strings_become_utf8_and_are_cut_at_a_character) {
  fake_python::install(12);
  const auto read = [](const fake_python::String& string, std::size_t room = 64) {
    std::vector<char> out(room);
    std::uint32_t bytes = 0;
    CHECK(read_string(string.memory.data(), out.data(), room, bytes));
    return std::string(out.data(), bytes);
  };
  CHECK_EQUAL(read(fake_python::String("ascii")), "ascii");
  CHECK_EQUAL(read(fake_python::String(std::string_view("\xFC"))), "\xC3\xBC");
  CHECK_EQUAL(read(fake_python::String(std::u16string_view(u"\u6F22\u0439"))), "\xE6\xBC\xA2\xD0\xB9");
  CHECK_EQUAL(read(fake_python::String(std::u16string_view(u"a\xDC80"))), "a\xEF\xBF\xBD");  // a lone surrogate
  CHECK_EQUAL(read(fake_python::String(std::u32string_view(U"\U0001D11E"))), "\xF0\x9D\x84\x9E");
  CHECK_EQUAL(read(fake_python::String(std::u32string_view(U"ab\U0001D11E")), 5), "ab");
  std::uint32_t bytes = 0;
  CHECK(!read_string(nullptr, nullptr, 0, bytes));
}

TEST(what_is_not_as_expected_gives_no_stack) {
  fake_python::install(12);
  Code code("a.py", "f", 1);
  Frames frames;
  frames.enter(code, 4, kOwnedByFrameObject);  // of a compiler such as Nuitka
  Reader reader;
  CHECK_EQUAL(reader.stack(), none(Captured::unreadable));
  frames.leave();
  frames.enter(code);
  fake_python::write_at(code.memory, kObjectType, static_cast<void*>(&reader));
  CHECK_EQUAL(reader.stack(), none(Captured::unreadable));
  CHECK_EQUAL(reader.defined, 0u);
}

TEST(a_thread_without_python_has_no_stack) {
  fake_python::install(12);
  Reader reader;
  CHECK_EQUAL(reader.stack(), none(Captured::no_python));
  Frames frames;
  const Code code("a.py", "f", 1);
  frames.enter(code);
  frames.leave_all();  // a state without frames, as in a thread of C after a call back
  CHECK_EQUAL(reader.stack(), none(Captured::no_python));
}

TEST(a_second_interpreter_before_3_12_ends_stacks) {
  for (const std::uint32_t minor : {10u, 11u}) {
    fake_python::install(minor);
    const Code code("a.py", "f", 1);
    Frames frames;
    frames.enter(code);
    Reader reader;
    CHECK_EQUAL(reader.stack(), "a.py:f:1");
    fake_python::write_at(fake_python::runtime, kLayouts[interpreter.version].interpreters, std::int64_t{2});
    CHECK_EQUAL(reader.stack(), none(Captured::unreadable));
  }
}

// ---- the tables of a thread ----

TEST(a_known_stack_is_defined_once) {
  fake_python::install(12);
  const Code main("a.py", "main", 1), f("a.py", "f", 10);
  Frames frames;
  frames.enter(main);
  frames.enter(f);
  Reader reader;
  const std::uint32_t first = reader.take().number;
  CHECK_EQUAL(reader.take().number, first);
  CHECK_EQUAL(reader.defined, 2u);
  frames.go_on(f, 6);  // another instruction: another position, the same frames
  CHECK(reader.take().number != first);
  frames.go_on(f, 4);
  CHECK_EQUAL(reader.take().number, first);
  CHECK_EQUAL(reader.defined, 3u);
  CHECK_EQUAL(reader.nodes.size(), std::size_t{3});  // main, f, f
}

TEST(a_code_object_that_dies_is_forgotten) {
  fake_python::install(12);
  watch_code_deaths(fake_python::code_type.data());
  const Code main("a.py", "main", 1), other("b.py", "other", 1);
  Code f("a.py", "f", 10);
  Code unseen("a.py", "unseen", 10);
  Frames frames;
  frames.enter(main);
  frames.enter(f);
  Reader reader;
  CHECK_EQUAL(reader.stack(), "a.py:main:1 a.py:f:10");
  unseen.die();
  CHECK_EQUAL(reader.stack(), "a.py:main:1 a.py:f:10");
  CHECK_EQUAL(reader.forgotten, 1u);
  f.die();
  f.rename("successor");  // another object at the same address
  CHECK_EQUAL(reader.stack(), "a.py:main:1 a.py:successor:10");
  CHECK_EQUAL(reader.forgotten, 2u);
  CHECK_EQUAL(fake_python::freed.size(), std::size_t{2});
  unwatch_code_deaths();
  f.die();
  CHECK_EQUAL(fake_python::freed.size(), std::size_t{3});
}

// More objects than a line of the table of noted objects can hold.
TEST(deaths_are_seen_among_very_many_code_objects) {
  fake_python::install(12);
  watch_code_deaths(fake_python::code_type.data());
  for (std::uint64_t code = 1; code < 100'000; ++code) note_code(code << 4);
  const auto deallocate = read_at<void (*)(void*)>(fake_python::code_type.data(), kTypeDealloc);
  for (std::uint64_t code = 1; code < 100'000; code += 997) {
    const std::uint32_t before = code_epoch();
    deallocate(reinterpret_cast<void*>(code << 4));
    CHECK(code_epoch() != before);
  }
  unwatch_code_deaths();
}

TEST(another_tool_in_place_of_the_deallocator_is_left_there) {
  fake_python::install(12);
  Code f("a.py", "f", 10);
  watch_code_deaths(fake_python::code_type.data());
  static void (*ours)(void*) = nullptr;
  static unsigned theirs = 0;
  ours = read_at<void (*)(void*)>(fake_python::code_type.data(), kTypeDealloc);
  void (*const tool)(void*) = [](void* code) {
    ++theirs;
    ours(code);
  };
  fake_python::write_at(fake_python::code_type, kTypeDealloc, tool);
  unwatch_code_deaths();
  CHECK(read_at<void (*)(void*)>(fake_python::code_type.data(), kTypeDealloc) == tool);
  watch_code_deaths(fake_python::code_type.data());
  note_code(reinterpret_cast<std::uint64_t>(f.memory.data()));
  const std::uint32_t before = code_epoch();
  f.die();
  CHECK(code_epoch() != before);
  CHECK(theirs == 1 && fake_python::freed.size() == 1);
}

TEST(a_full_sink_costs_a_stack_and_no_more) {
  fake_python::install(12);
  const Code main("a.py", "main", 1), f("a.py", "f", 10);
  Frames frames;
  frames.enter(main);
  Reader reader;
  reader.full = true;
  CHECK_EQUAL(reader.stack(), none(Captured::sink_is_full));
  reader.full = false;
  CHECK_EQUAL(reader.stack(), "a.py:main:1");
  frames.enter(f);
  reader.full = true;
  CHECK_EQUAL(reader.stack(), none(Captured::sink_is_full));
  reader.full = false;
  CHECK_EQUAL(reader.stack(), "a.py:main:1 a.py:f:10");
  CHECK(reader.forgotten == 1 && reader.defined == 2);
}

TEST(a_thread_whose_tables_are_full_starts_again) {
  fake_python::install(12);
  std::vector<std::unique_ptr<Code>> codes;
  for (int i = 0; i < 2000; ++i) codes.push_back(std::make_unique<Code>("a.py", ("f" + std::to_string(i)).c_str(), i + 1));
  Reader reader;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 2000; ++i) {
      Frames frames;
      frames.enter(*codes[static_cast<std::size_t>(i)]);
      CHECK_EQUAL(reader.stack(100'000), "a.py:f" + std::to_string(i) + ":" + std::to_string(i + 1));
    }
  }
  CHECK(reader.forgotten > 4);
  CHECK(stack_tables_memory() <= 100'000);
}

TEST(a_thread_with_many_stacks_gets_larger_tables) {
  fake_python::install(12);
  std::vector<std::unique_ptr<Code>> codes;
  for (int i = 0; i < 2000; ++i) codes.push_back(std::make_unique<Code>("a.py", ("f" + std::to_string(i)).c_str(), i + 1));
  Reader reader;
  const auto take_all = [&] {
    for (int i = 0; i < 2000; ++i) {
      Frames frames;
      frames.enter(*codes[static_cast<std::size_t>(i)]);
      CHECK_EQUAL(reader.stack(), "a.py:f" + std::to_string(i) + ":" + std::to_string(i + 1));
    }
  };
  take_all();
  take_all();
  const unsigned forgotten = reader.forgotten, defined = reader.defined;
  take_all();
  CHECK(reader.forgotten == forgotten && reader.defined == defined);
  const std::size_t memory = stack_tables_memory();
  // Other threads reuse its earlier small tables.
  on_thread([&] {
    Frames frames;
    frames.enter(*codes[0]);
    CHECK_EQUAL(Reader().stack(), "a.py:f0:1");
  });
  CHECK_EQUAL(stack_tables_memory(), memory);
}

TEST(the_longest_stack_fits_and_deeper_ones_lose_their_outermost_frames) {
  fake_python::install(12);
  std::vector<std::unique_ptr<Code>> codes;
  Frames frames;
  for (std::uint32_t i = 0; i < kMostFrames + 3; ++i) {
    codes.push_back(std::make_unique<Code>("a.py", ("f" + std::to_string(i)).c_str(), 1));
    frames.enter(*codes.back());
    Reader reader;
    const CapturedStack captured = reader.take(100'000);
    CHECK_EQUAL(captured.truncated, i >= kMostFrames);
    CHECK(captured.number != 0);
    std::size_t depth = 0;
    std::string outermost;
    for (std::uint32_t node = captured.number; node != 0; node = reader.nodes.at(node).first) {
      ++depth;
      outermost = reader.frames.at(reader.nodes.at(node).second);
    }
    CHECK_EQUAL(depth, std::size_t{std::min(i + 1, kMostFrames)});
    CHECK_EQUAL(outermost, i < kMostFrames ? "a.py:f0:1" : "a.py:f" + std::to_string(i + 1 - kMostFrames) + ":1");
  }
}

TEST(another_recording_and_another_reader_get_definitions_of_their_own) {
  fake_python::install(12);
  const Code main("a.py", "main", 1);
  Frames frames;
  frames.enter(main);
  Reader reader, second;
  CHECK_EQUAL(reader.stack(), "a.py:main:1");
  CHECK_EQUAL(second.stack(), "a.py:main:1");
  ++second.recording;
  CHECK_EQUAL(second.stack(), "a.py:main:1");
  CHECK(reader.forgotten == 1 && second.forgotten == 2);
}

TEST(threads_have_tables_within_the_memory_and_take_those_of_ended_threads) {
  fake_python::install(12);
  const Code main("a.py", "main", 1);
  const auto stack = [&](std::size_t memory) {
    Frames frames;
    frames.enter(main);
    Reader reader;
    const std::string found = reader.stack(memory);
    if (found == "a.py:main:1") CHECK_EQUAL(reader.forgotten, 1u);
    return found;
  };
  on_thread([&] { CHECK_EQUAL(stack(100'000), "a.py:main:1"); });
  const std::size_t memory = stack_tables_memory();
  for (int i = 0; i < 5; ++i) on_thread([&] { CHECK_EQUAL(stack(100'000), "a.py:main:1"); });
  CHECK_EQUAL(stack_tables_memory(), memory);
  on_thread([&] {
    CHECK_EQUAL(stack(memory), "a.py:main:1");
    on_thread([&] { CHECK_EQUAL(stack(memory), none(Captured::no_memory)); });
  });
}

TEST(a_capture_inside_a_capture_finds_none) {
  fake_python::install(12);
  const Code main("a.py", "main", 1);
  Frames frames;
  frames.enter(main);
  Reader reader;
  std::string inner;
  reader.in_definition = [&] { inner = Reader().stack(); };  // as in a signal handler
  CHECK_EQUAL(reader.stack(), "a.py:main:1");
  CHECK_EQUAL(inner, none(Captured::nested));
}

TEST_OF_THREADS(at_the_end_of_the_interpreter_only_its_thread_has_stacks) {
  fake_python::install(12);
  const Code main("a.py", "main", 1);
  std::atomic<bool> inside{false}, go_on{false}, closed{false};
  // close_captures() waits for a running capture.
  std::thread busy([&] {
    Frames frames;
    frames.enter(main);
    Reader reader;
    reader.in_definition = [&] {
      inside = true;
      while (!go_on) std::this_thread::yield();
      CHECK(!closed);
    };
    CHECK_EQUAL(reader.stack(), "a.py:main:1");
    while (!closed) std::this_thread::yield();
    CHECK_EQUAL(reader.stack(), none(Captured::closing));
  });
  while (!inside) std::this_thread::yield();
  std::thread release([&] { go_on = true; });
  close_captures();
  closed = true;
  busy.join();
  release.join();
  Frames frames;
  frames.enter(main);
  CHECK_EQUAL(Reader().stack(), "a.py:main:1");
}

TEST(an_interpreter_that_is_not_initialized_has_no_stacks) {
  fake_python::install(12);
  const Code main("a.py", "main", 1);
  Frames frames;
  frames.enter(main);
  fake_python::initialized = false;
  CHECK_EQUAL(Reader().stack(), none(Captured::closing));
}

TEST_OF_THREADS(threads_capture_while_code_objects_die) {
  fake_python::install(12);
  watch_code_deaths(fake_python::code_type.data());
  const Code main("a.py", "main", 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      Frames frames;
      frames.enter(main);
      Reader reader;
      for (int i = 0; i < 300; ++i) {
        const std::string name = "f" + std::to_string(t) + "_" + std::to_string(i);
        const Code code("a.py", name.c_str(), i + 1);
        frames.enter(code);
        CHECK_EQUAL(reader.stack(), "a.py:main:1 a.py:" + name + ":" + std::to_string(i + 1));
        frames.leave();
        note_code(reinterpret_cast<std::uint64_t>(code.memory.data()));
        raise_code_epoch();  // as its death does
      }
    });
  for (std::thread& thread : threads) thread.join();
  unwatch_code_deaths();
}

// ---- the writer's part ----

namespace {

// A file with the rows of stacks. Events are passed as from a ring.
struct StackFile {
  explicit StackFile(std::size_t limit = kMemory, const std::string& more = {}) {
    char name[] = "/tmp/cutrace-test-XXXXXX";
    const int file = mkstemp(name);
    CHECK(file >= 0);
    close(file);
    path = name;
    unlink(name);
    std::string error;
    CHECK(parse_options("output=" + path + ";stacks=sync" + more, options, error));
    CHECK(capture.file().create(path, 0600, 1, 1, error));
    CHECK(capture.process("{}", false));
    renewed = 0;
    decoder = std::make_unique<StackDecoder>(DecoderContext{options, library, capture, threads, watcher, notes}, counts, limit,
                                             [] { ++renewed; });
    recording = rings::arm(1 << 20);
  }
  ~StackFile() { unlink(path.c_str()); }

  template <typename Event>
  void put(Ring& ring, Event event, EventType type, const std::string& tail = {}) {
    event.head = {static_cast<std::uint32_t>(sizeof event + tail.size()), type, 0, static_cast<std::uint16_t>(recording)};
    std::string bytes(reinterpret_cast<const char*>(&event), sizeof event);
    bytes += tail;
    decoder->event(ring, reinterpret_cast<const std::uint8_t*>(bytes.data()));
  }
  void forget(Ring& ring) { put(ring, StackForgetEvent{}, EventType::stack_forget); }
  void frame(Ring& ring, std::uint32_t number, const std::string& file, const std::string& function, std::uint32_t line) {
    StackFrameEvent event{{}, number, line, static_cast<std::uint32_t>(file.size()), static_cast<std::uint32_t>(function.size())};
    put(ring, event, EventType::stack_frame, file + function);
  }
  void node(Ring& ring, std::uint32_t number, std::uint32_t parent, std::uint32_t frame) {
    put(ring, StackNodeEvent{{}, number, parent, frame, 0}, EventType::stack_node);
  }
  void call(Ring& ring, std::uint32_t correlation, std::uint32_t node) {
    put(ring, CallStackEvent{{}, correlation, node}, EventType::call_stack);
  }
  // Ends the file. "correlation/thread: frames, outermost first" of each call.
  std::vector<std::string> end() {
    rings::disarm(recording);
    decoder->write_out(true);
    CHECK(capture.process(notes.take().str(), true));
    capture.flush(true);
    CHECK(capture.file().close());
    return read(path);
  }
  static std::vector<std::string> read(const std::string& path) {
    const CaptureReader reader(path);
    std::map<std::uint32_t, std::string> frames, stacks;
    for (const auto& row : reader.rows<rows::Frames>())
      frames[std::uint32_t{row.id}] = reader.text(row.file) + ":" + reader.text(row.function) + ":" + std::to_string(row.line);
    for (const auto& row : reader.rows<rows::Stacks>()) {
      const std::string parent = row.parent != 0 ? stacks.at(std::uint32_t{row.parent}) + " " : "";
      CHECK(stacks.emplace(std::uint32_t{row.id}, parent + frames.at(std::uint32_t{row.frame})).second);
    }
    std::vector<std::string> calls;
    for (const auto& row : reader.rows<rows::CallStacks>())
      calls.push_back(std::to_string(row.correlation) + "/" + std::to_string(row.thread) + ": " + stacks.at(std::uint32_t{row.stack}));
    return calls;
  }

  static inline unsigned renewed = 0;
  std::string path;
  Options options;
  CuptiLibrary library;
  Capture capture{kMemory};
  ThreadNames threads{capture};
  Watcher watcher;
  Notes notes;
  StackCounts counts;
  std::uint32_t recording = 0;
  std::unique_ptr<StackDecoder> decoder;
};

struct FakeRing {
  explicit FakeRing(std::uint32_t thread) { ring.thread = thread; }
  std::uint8_t data[64]{};
  Ring ring{data, sizeof data};
};

using Calls = std::vector<std::string>;

}  // namespace

TEST(equal_stacks_of_threads_get_one_row) {
  FakeRing first(1), second(2);
  StackFile written;
  for (Ring* ring : {&first.ring, &second.ring}) {
    written.forget(*ring);
    const std::uint32_t shift = ring == &second.ring ? 1 : 0;  // their numbers differ
    if (shift != 0) written.frame(*ring, 1, "b.py", "other", 9);
    written.frame(*ring, 1 + shift, "a.py", "main", 1);
    written.frame(*ring, 2 + shift, "a.py", "f", 2);
    written.node(*ring, 1, 0, 1 + shift);
    written.node(*ring, 2, 1, 2 + shift);
    written.call(*ring, 10 + shift, 2);
    written.call(*ring, 20 + shift, 2);
  }
  CHECK((written.end() == Calls{"10/1: a.py:main:1 a.py:f:2", "20/1: a.py:main:1 a.py:f:2", "11/2: a.py:main:1 a.py:f:2",
                                "21/2: a.py:main:1 a.py:f:2"}));
  const CaptureReader reader(written.path);
  CHECK(reader.rows<rows::Stacks>().size() == 2 && reader.rows<rows::Frames>().size() == 2);
  CHECK(reader.says(R"("python_stacks":{"calls":4})"));
}

TEST(each_file_has_the_rows_of_its_stacks) {
  FakeRing thread(1);
  StackFile written;
  written.forget(thread.ring);
  written.frame(thread.ring, 1, "a.py", "main", 1);
  written.frame(thread.ring, 2, "a.py", "f", 2);
  written.node(thread.ring, 1, 0, 1);
  written.node(thread.ring, 2, 1, 2);
  written.call(thread.ring, 10, 2);
  std::string error;
  const std::string first = written.path + ".1";
  CHECK(written.capture.file().prepare_next(error));
  written.decoder->write_out(true);
  written.capture.flush(true);
  CHECK(written.capture.file().move_to(first, error));
  written.capture.begin_file();
  written.capture.file().switch_to_next(error);
  CHECK(written.capture.process("{}", false));
  written.call(thread.ring, 11, 1);
  written.call(thread.ring, 12, 2);
  CHECK((written.end() == Calls{"11/1: a.py:main:1", "12/1: a.py:main:1 a.py:f:2"}));
  CHECK((StackFile::read(first) == Calls{"10/1: a.py:main:1 a.py:f:2"}));
  // An id has one meaning in all files.
  CHECK(CaptureReader(first).rows<rows::Stacks>()[1].id == CaptureReader(written.path).rows<rows::Stacks>()[1].id);
  unlink(first.c_str());
}

TEST(numbers_are_void_after_forgetting_and_at_the_end_of_a_thread) {
  FakeRing thread(1);
  StackFile written;
  const auto define = [&](const char* function) {
    written.forget(thread.ring);
    written.frame(thread.ring, 1, "a.py", function, 1);
    written.node(thread.ring, 1, 0, 1);
  };
  define("f");
  written.call(thread.ring, 1, 1);
  define("g");
  written.call(thread.ring, 2, 1);
  written.decoder->ring_is_read(thread.ring, true);
  written.call(thread.ring, 3, 1);
  CHECK((written.end() == Calls{"1/1: a.py:f:1", "2/1: a.py:g:1"}));
  CHECK_EQUAL(CaptureReader(written.path).lost(rows::Loss::stacks_dropped), std::uint64_t{1});
}

TEST(a_node_without_its_parent_or_frame_is_none) {
  FakeRing thread(1);
  StackFile written;
  written.forget(thread.ring);
  written.frame(thread.ring, 1, "a.py", "f", 1);
  written.node(thread.ring, 1, 7, 1);
  written.node(thread.ring, 2, 0, 9);
  for (const std::uint32_t node : {1u, 2u, 3u}) written.call(thread.ring, node, node);
  CHECK(written.end().empty());
  CHECK_EQUAL(CaptureReader(written.path).lost(rows::Loss::stacks_dropped), std::uint64_t{3});
}

TEST(events_of_an_earlier_recording_are_ignored) {
  FakeRing thread(1);
  StackFile written;
  const std::uint32_t now = written.recording;
  written.recording = now - 1;
  written.forget(thread.ring);
  written.frame(thread.ring, 1, "a.py", "f", 1);
  written.node(thread.ring, 1, 0, 1);
  written.call(thread.ring, 5, 1);
  written.recording = now;
  CHECK(written.end().empty());
  CHECK_EQUAL(CaptureReader(written.path).lost(rows::Loss::stacks_dropped), std::uint64_t{0});
}

TEST(the_writer_forgets_at_its_limit_and_threads_define_again) {
  FakeRing first(1), idle(2);
  StackFile written(20'000);
  const auto define = [&](Ring& ring, int function) {
    written.forget(ring);
    written.frame(ring, 1, "a.py", "f" + std::to_string(function), 1);
    written.node(ring, 1, 0, 1);
  };
  Calls expected;
  define(idle.ring, -1);
  for (int i = 0; i < 2000; ++i) {
    define(first.ring, i);
    written.call(first.ring, static_cast<std::uint32_t>(i), 1);
    expected.push_back(std::to_string(i) + "/1: a.py:f" + std::to_string(i) + ":1");
    const unsigned before = StackFile::renewed;
    if (i % 50 == 0) written.decoder->write_out(false);
    // An event that was in a ring when the writer forgot its stacks.
    if (StackFile::renewed != before && StackFile::renewed == 1) {
      written.call(idle.ring, 9999, 1);
      expected.push_back("9999/2: a.py:f-1:1");
    }
  }
  CHECK(StackFile::renewed > 3);
  CHECK(written.decoder->memory() < 60'000);
  written.call(idle.ring, 10'000, 1);  // a thread that has not defined its stacks again
  CHECK(written.end() == expected);
  CHECK_EQUAL(CaptureReader(written.path).lost(rows::Loss::stacks_dropped), std::uint64_t{1});
}

TEST(calls_without_a_stack_are_counted_by_reason) {
  FakeRing thread(1);
  StackFile written;
  for (int i = 0; i < 3; ++i) written.counts.count(NoStack::no_python);
  written.counts.count(NoStack::unchecked);
  written.counts.count(NoStack::unreadable);
  written.counts.count(NoStack::no_memory);
  written.counts.count(NoStack::closing);
  written.counts.truncated = 2;
  thread.ring.drop(EventSource::stacks);
  written.decoder->ring_is_read(thread.ring, false);
  written.decoder->write_out(false);
  CHECK_EQUAL(written.notes.sentences().size(), std::size_t{1});  // about no_python
  written.counts.count(NoStack::no_python);
  written.forget(thread.ring);
  written.frame(thread.ring, 1, "a.py", "f", 1);
  written.node(thread.ring, 1, 0, 1);
  written.call(thread.ring, 1, 1);
  written.end();
  const CaptureReader reader(written.path);
  CHECK_EQUAL(reader.lost(rows::Loss::stacks_dropped), std::uint64_t{3});
  CHECK_EQUAL(reader.rows<rows::Losses>().size(), std::size_t{3});  // each with its cause
  CHECK(reader.says(R"("python_stacks":{"calls":1,"truncated":2,"no_python":4,"unchecked":1,"closing":1,"unreadable":1,"no_memory":1})"));
  const std::vector<std::string> notes = written.notes.sentences();
  CHECK_EQUAL(notes.size(), std::size_t{2});
  CHECK_EQUAL(notes[0].substr(0, 33), "4 calls have no Python stack, bec");
  CHECK_EQUAL(notes[1].substr(0, 33), "1 calls have no Python stack, bec");
}

TEST(a_redacted_recording_hides_paths) {
  FakeRing thread(1);
  StackFile written(kMemory, ";redact=1");
  written.forget(thread.ring);
  written.frame(thread.ring, 1, "/home/me/a.py", "f", 1);
  written.frame(thread.ring, 2, "<string>", "g", 2);
  written.node(thread.ring, 1, 0, 1);
  written.node(thread.ring, 2, 1, 2);
  written.call(thread.ring, 1, 2);
  CHECK((written.end() == Calls{"1/1: (path):f:1 <string>:g:2"}));
}

// ---- options ----

TEST(the_words_of_the_option) {
  const auto parse = [](const std::string& text) {
    Options options;
    std::string error;
    const bool valid = parse_options("output=/tmp/x;" + text, options, error);
    CHECK_EQUAL(valid, error.empty());
    return std::pair(options, error);
  };
  CHECK_EQUAL(parse("stacks=sync").first.stacks, bit(CallGroup::sync));
  CHECK_EQUAL(parse("stacks=sync,alloc, copy,launch").first.stacks, (CallGroups{1} << 4) - 1);
  CHECK_EQUAL(parse("stacks=launch:100,sync").first.stacks_every, 100u);
  CHECK_EQUAL(parse("stacks=sync;stacks_min_ns=20000").first.stacks_min_ns, std::uint64_t{20000});
  CHECK(parse("kinds=nvtx;stacks=sync").first.uses_cupti() && !parse("kinds=nvtx").first.uses_cupti());
  for (const char* wrong : {"stacks=", "stacks=launches", "stacks=sync:3", "stacks=launch:0", "stacks=launch:x",
                            "stacks=launch:1/3", "stacks_min_ns=20us"})
    CHECK_EQUAL(parse(wrong).second, "the option '" + std::string(wrong) + "' is invalid: its key or its value is unknown");
}

TEST(calls_are_grouped_by_their_names) {
  const auto in = [](const char* name, std::initializer_list<CallGroup> groups) {
    CallGroups expected = 0;
    for (const CallGroup group : groups) expected |= bit(group);
    CHECK_EQUAL(std::string(name) + ":" + std::to_string(call_groups(name)), std::string(name) + ":" + std::to_string(expected));
    CHECK_EQUAL(keeps_api_call(name) || groups.size() == 0, true);
  };
  using enum CallGroup;
  for (const char* name : {"cudaStreamSynchronize_v3020", "cuCtxSynchronize", "cudaDeviceSynchronize_v3020", "cuEventSynchronize"})
    in(name, {sync});
  for (const char* name : {"cudaMalloc_v3020", "cuMemAlloc_v2", "cudaFreeAsync_v11020", "cuMemFree_v2", "cudaHostAlloc_v3020", "cuMemCreate"})
    in(name, {alloc});
  for (const char* name : {"cudaMemcpyAsync_v3020", "cuMemcpyHtoDAsync_v2", "cudaMemset_v3020", "cuMemsetD8_v2", "cudaMemPrefetchAsync_v8000"})
    in(name, {copy});
  for (const char* name : {"cudaMemcpy_v3020", "cuMemcpyDtoH_v2", "cudaMemcpy2D_v3020"}) in(name, {copy, sync});  // these wait
  for (const char* name : {"cudaLaunchKernel_v7000", "__cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaGraphLaunch_v10000"})
    in(name, {launch});
  for (const char* name : {"cudaGetDevice_v3020", "cuModuleLoadData", "cudaStreamWaitEvent_v3020", "cuGraphAddMemcpyNode", "cudaEventQuery_v3020"})
    in(name, {});
}

int main(int argc, char** argv) { return check::main(argc, argv); }
