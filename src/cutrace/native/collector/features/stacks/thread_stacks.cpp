#include "thread_stacks.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
#include <utility>

#include "code_deaths.h"
#include "core/clock.h"
#include "core/interning.h"
#include "core/own_thread.h"

namespace cutrace::python {
namespace {

// Two different hashes of the positions of a stack, because stacks with equal keys count as equal.
struct StackKey {
  std::uint64_t a = 0x9E3779B97F4A7C15u;
  std::uint64_t b = 0xD1B54A32D192ED03u;

  void add(const FramePosition& position) {
    a = hash_mix(a ^ position.code, position.instruction);
    b = (b ^ position.code) * 0x2545F4914F6CDD1Du;
    b = std::rotl(b, 29) + position.instruction;
  }
};

// A used entry of a table has the generation of the thread.
struct StackEntry {
  std::uint64_t a, b;
  std::uint32_t number, generation;
};
struct FrameEntry {
  std::uint64_t code, instruction;
  std::uint32_t number, generation;
};
struct NodeEntry {
  std::uint32_t parent, frame;
  std::uint32_t number, generation;
};

// A hash table with open addressing. Its size is a power of two. At most three quarters of it are used, so that a search ends
// soon.
template <typename Entry>
class OpenTable {
 public:
  void use(void* memory, std::size_t size) {
    entries_ = static_cast<Entry*>(memory);
    size_ = size;
  }
  void clear() { used_ = 0; }
  bool has_room(std::size_t count) const { return used_ + count <= size_ / 4 * 3; }

  // The entry that matches, or the free entry for a new one.
  template <typename Match>
  Entry& find(std::uint64_t hash, std::uint32_t generation, Match&& match) const {
    std::size_t i = hash & (size_ - 1);
    while (entries_[i].generation == generation && !match(entries_[i])) i = (i + 1) & (size_ - 1);
    return entries_[i];
  }
  void fill(Entry& free, const Entry& entry) {
    free = entry;
    ++used_;
  }

 private:
  Entry* entries_ = nullptr;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
};

constexpr std::uint32_t kHiddenFrame = 0;  // in place of a frame's number

class ThreadStacks {
 public:
  // Entries of the table of stacks. Each table has room for the longest stack. A thread starts with the smallest tables, and gets
  // larger ones when they are full.
  static constexpr std::size_t kLeast = 256, kMost = 16'384, kGrowth = 4;
  static constexpr std::size_t kFrames = 2, kNodes = 4;  // entries of the other tables for each entry of the table of stacks
  static_assert(kFrames * kLeast / 4 * 3 > kMostFrames);
  static constexpr std::size_t kBytesEach = sizeof(StackEntry) + kFrames * sizeof(FrameEntry) + kNodes * sizeof(NodeEntry);

  static std::size_t bytes(std::size_t entries) { return sizeof(ThreadStacks) + entries * kBytesEach; }

  // The object is placed in bytes(entries) of zeroed memory.
  explicit ThreadStacks(std::size_t entries) : entries_(entries) {
    auto* next = reinterpret_cast<std::uint8_t*>(this) + sizeof(ThreadStacks);
    stacks_.use(next, entries);
    next += entries * sizeof(StackEntry);
    frames_.use(next, kFrames * entries);
    next += kFrames * entries * sizeof(FrameEntry);
    nodes_.use(next, kNodes * entries);
  }

  std::size_t entries() const { return entries_; }
  // A thread takes the tables.
  void begin() {
    reader_ = {};
    full_ = false;
  }
  // Whether the tables were full since the last call.
  bool take_full() { return std::exchange(full_, false); }

  CapturedStack capture(const void* state, StackSink& sink, const StackReader& reader) {
    const std::uint32_t epoch = code_epoch();
    if (epoch != epoch_ || reader != reader_) forget();
    epoch_ = epoch;
    reader_ = reader;

    StackKey key;
    FramePosition* next = positions_.data();
    const WalkedFrames walked = walk_frames(state, [&](const FramePosition& position) {
      *next++ = position;
      key.add(position);
      return true;
    });
    CapturedStack captured;
    captured.truncated = walked.truncated;
    if (walked.foreign) captured.result = Captured::unreadable;
    if (walked.foreign || walked.count == 0) return captured;
    StackEntry& known = find_stack(key);
    if (known.generation == generation_) captured.number = known.number;
    else captured.number = define(key, walked.count, sink, captured.result);
    if (captured.number != 0) captured.result = Captured::stack;
    return captured;
  }

  std::atomic<std::uint32_t> busy{0};  // a capture of the thread runs
  std::atomic<bool> owned{true};       // used by a thread that has not ended
  ThreadStacks* next_in_list = nullptr;  // fixed once it is in the list

 private:
  void forget() {
    ++generation_;
    stacks_.clear();
    frames_.clear();
    nodes_.clear();
    last_frame_ = 0;
    last_node_ = 0;
    told_to_forget_ = false;
  }

  StackEntry& find_stack(const StackKey& key) const {
    return stacks_.find(key.a, generation_, [&](const StackEntry& entry) { return entry.a == key.a && entry.b == key.b; });
  }

  // Defines the new frames and nodes of the positions' stack. Returns the stack's number, or 0 and the reason.
  [[gnu::noinline]] std::uint32_t define(const StackKey& key, std::uint32_t count, StackSink& sink, Captured& reason) {
    full_ = !(stacks_.has_room(1) && frames_.has_room(count) && nodes_.has_room(count));
    if (full_) forget();
    reason = Captured::sink_is_full;
    if (!told_to_forget_ && !sink.forget()) return 0;
    told_to_forget_ = true;
    std::uint32_t node = 0;
    for (std::uint32_t i = count; i-- > 0;) {
      std::uint32_t frame = 0;
      reason = define_frame(positions_[i], sink, frame);
      if (reason != Captured::stack) return 0;
      if (frame == kHiddenFrame) continue;
      node = define_node(node, frame, sink);
      reason = Captured::sink_is_full;
      if (node == 0) return 0;
    }
    reason = Captured::no_python;  // all frames are hidden
    if (node != 0) stacks_.fill(find_stack(key), {key.a, key.b, node, generation_});
    return node;
  }

  Captured define_frame(const FramePosition& position, StackSink& sink, std::uint32_t& frame) {
    const std::uint64_t hash = hash_mix(position.code, position.instruction);
    FrameEntry& entry = frames_.find(hash, generation_, [&](const FrameEntry& other) {
      return other.code == position.code && other.instruction == position.instruction;
    });
    if (entry.generation == generation_) {
      frame = entry.number;
      return Captured::stack;
    }
    const FrameKind kind = read_frame(position, text_);
    if (kind == FrameKind::unreadable) return Captured::unreadable;
    note_code(position.code);
    frame = kHiddenFrame;
    if (kind == FrameKind::shown) {
      if (!sink.define_frame(last_frame_ + 1, text_)) return Captured::sink_is_full;
      frame = ++last_frame_;
    }
    frames_.fill(entry, {position.code, position.instruction, frame, generation_});
    return Captured::stack;
  }

  std::uint32_t define_node(std::uint32_t parent, std::uint32_t frame, StackSink& sink) {
    NodeEntry& entry = nodes_.find(hash_mix(parent, frame), generation_, [&](const NodeEntry& other) {
      return other.parent == parent && other.frame == frame;
    });
    if (entry.generation == generation_) return entry.number;
    if (!sink.define_stack(last_node_ + 1, parent, frame)) return 0;
    nodes_.fill(entry, {parent, frame, ++last_node_, generation_});
    return last_node_;
  }

  const std::size_t entries_;
  bool full_ = false;
  std::uint32_t generation_ = 1;
  std::uint32_t epoch_ = 0;
  StackReader reader_;
  std::uint32_t last_frame_ = 0;
  std::uint32_t last_node_ = 0;
  bool told_to_forget_ = false;
  OpenTable<StackEntry> stacks_;
  OpenTable<FrameEntry> frames_;
  OpenTable<NodeEntry> nodes_;
  std::array<FramePosition, kMostFrames> positions_;
  FrameText text_;
};

std::atomic<ThreadStacks*> list{nullptr};
std::atomic<std::size_t> memory_used{0};
std::atomic<bool> closing{false};
std::atomic<pthread_t> closer{};

thread_local ThreadStacks* stacks_of_thread = nullptr;

const AtThreadEnd retire([](void* value) {
  stacks_of_thread = nullptr;
  static_cast<ThreadStacks*>(value)->owned.store(false, std::memory_order_release);
});

// The smallest tables of an ended thread with at least this many entries.
ThreadStacks* reuse(std::size_t entries) {
  ThreadStacks* best = nullptr;
  for (ThreadStacks* stacks = list.load(std::memory_order_acquire); stacks != nullptr; stacks = stacks->next_in_list) {
    const bool fits = stacks->entries() >= entries && !stacks->owned.load(std::memory_order_relaxed);
    if (fits && (best == nullptr || stacks->entries() < best->entries())) best = stacks;
  }
  bool owned = false;
  if (best == nullptr || !best->owned.compare_exchange_strong(owned, true, std::memory_order_acquire)) return nullptr;
  return best;
}

ThreadStacks* create(std::size_t entries, std::size_t memory) {
  const std::size_t bytes = ThreadStacks::bytes(entries);
  if (memory_used.fetch_add(bytes) + bytes > memory) {
    memory_used.fetch_sub(bytes);
    return nullptr;
  }
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    memory_used.fetch_sub(bytes);
    return nullptr;
  }
  auto* const stacks = new (mapped) ThreadStacks(entries);
  stacks->next_in_list = list.load(std::memory_order_relaxed);
  while (!list.compare_exchange_weak(stacks->next_in_list, stacks, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return stacks;
}

// Gives tables with this many entries to the calling thread. Null for lack of memory; the thread then keeps its tables.
[[gnu::noinline]] ThreadStacks* adopt(std::size_t entries, std::size_t memory) {
  const int saved = errno;
  ThreadStacks* stacks = reuse(entries);
  if (stacks == nullptr) stacks = create(entries, memory);
  if (stacks != nullptr) {
    stacks->begin();
    if (stacks_of_thread != nullptr) stacks_of_thread->owned.store(false, std::memory_order_release);
    stacks_of_thread = stacks;
    retire.set(stacks);
  }
  errno = saved;
  return stacks;
}

// The tables of the calling thread. Enlarges full tables. Null for lack of memory.
ThreadStacks* own_tables(std::size_t memory) {
  ThreadStacks* const stacks = stacks_of_thread;
  if (stacks == nullptr) return adopt(ThreadStacks::kLeast, memory);
  const bool grows = stacks->busy.load(std::memory_order_relaxed) == 0 && stacks->take_full() && stacks->entries() < ThreadStacks::kMost;
  ThreadStacks* const larger = grows ? adopt(stacks->entries() * ThreadStacks::kGrowth, memory) : nullptr;
  return larger != nullptr ? larger : stacks;
}

// Whether the interpreter keeps the state of this thread until the capture is over.
bool may_read_state() {
  if (closing.load()) return pthread_equal(closer.load(), pthread_self()) != 0;
  return interpreter.is_initialized() != 0;
}

}  // namespace

CapturedStack capture_stack(StackSink& sink, const StackReader& reader, std::size_t memory) {
  CapturedStack none;
  const void* const state = interpreter.this_thread_state();
  if (state == nullptr) return none;
  ThreadStacks* const stacks = own_tables(memory);
  if (stacks == nullptr) {
    none.result = Captured::no_memory;
    return none;
  }
  if (stacks->busy.load(std::memory_order_relaxed) != 0) {
    none.result = Captured::nested;
    return none;
  }
  stacks->busy.exchange(1);  // set before `closing` is read, because close_captures() sets `closing` before it reads `busy`
  CapturedStack captured = none;
  if (!may_read_state()) captured.result = Captured::closing;
  else if (may_be_in_subinterpreter()) captured.result = Captured::unreadable;
  else captured = stacks->capture(state, sink, reader);
  stacks->busy.store(0, std::memory_order_release);
  return captured;
}

void close_captures() {
  closer.store(pthread_self());
  closing.store(true);
  const std::uint64_t latest = now_ns() + kSecondNs;
  for (ThreadStacks* stacks = list.load(); stacks != nullptr; stacks = stacks->next_in_list)
    while (stacks != stacks_of_thread && stacks->busy.load() != 0 && now_ns() < latest) sched_yield();
}

std::size_t stack_tables_memory() { return memory_used.load(std::memory_order_relaxed); }

void forget_threads_after_fork() {
  list.store(nullptr);  // the child's copies of the other threads' tables stay unused
  memory_used.store(0);
  stacks_of_thread = nullptr;
  retire.set(nullptr);
}

}  // namespace cutrace::python
