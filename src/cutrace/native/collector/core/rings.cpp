#include "rings.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>

#include "own_thread.h"
#include "process_info.h"
#include "wake.h"

namespace cutrace::rings {

std::atomic<std::uint32_t> armed{0};

namespace {

constexpr std::size_t kLargestRing = std::size_t{1} << 20;
constexpr std::size_t kSmallestRing = std::size_t{16} << 10;
constexpr std::size_t kHead = 4096;  // bytes before the events: the object itself
static_assert(sizeof(Ring) <= kHead);

std::atomic<Ring*> list{nullptr};
std::atomic<std::size_t> memory_limit{std::size_t{16} << 20};
std::atomic<std::size_t> memory_used{0};
std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(EventSource::count)> ringless{};

std::atomic<std::uint32_t> recordings{0};

thread_local Ring* ring = nullptr;

const AtThreadEnd retire([](void* value) {
  ring = nullptr;
  static_cast<Ring*>(value)->state.store(Ring::kRetired, std::memory_order_release);
  // The writer frees the ring. A program may start more threads in a flush interval than there is memory for rings.
  if (memory_used.load() > memory_limit.load() / 2) writer_wake.signal();
});

// Takes the memory of a ring from the limit and returns its size; 0 if too little is left. Rings get smaller as the memory fills
// up, so that hundreds of threads get a ring, even if they start at once.
std::size_t take_memory() {
  const std::size_t limit = memory_limit.load();
  for (std::size_t used = memory_used.load();;) {
    const std::size_t left = limit > used ? limit - used : 0;
    const std::size_t size = std::clamp(std::bit_floor(left / 32), kSmallestRing, kLargestRing);
    if (size > left) return 0;
    if (memory_used.compare_exchange_weak(used, used + size)) return size;
  }
}

Ring* reuse() {
  for (Ring* r = list.load(std::memory_order_acquire); r != nullptr; r = r->next) {
    std::uint32_t expected = Ring::kFree;
    if (r->state.compare_exchange_strong(expected, Ring::kOwned, std::memory_order_acquire)) {
      r->take_over();
      return r;
    }
  }
  return nullptr;
}

Ring* create() {
  const std::size_t size = take_memory();
  if (size == 0) return nullptr;
  void* const mapped = mmap(nullptr, kHead + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    memory_used.fetch_sub(size);
    return nullptr;
  }
  Ring* const r = new (mapped) Ring(static_cast<std::uint8_t*>(mapped) + kHead, size);
  r->note.in_ring = true;
  r->next = list.load(std::memory_order_relaxed);
  while (!list.compare_exchange_weak(r->next, r, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return r;
}

Ring* adopt(EventSource source) {
  const int saved = errno;
  Ring* r = reuse();
  if (r == nullptr) r = create();
  if (r != nullptr) {
    r->thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
    r->recording = 0;
    if (!retire.set_without_memory(r)) r->unreported.store(r->thread, std::memory_order_release);
    ring = r;
  } else {
    ringless[static_cast<std::size_t>(source)].fetch_add(1, std::memory_order_relaxed);
  }
  errno = saved;
  return r;
}

}  // namespace

std::uint32_t latest() { return recordings.load(); }
std::uint32_t arm(std::size_t ring_memory) {
  memory_limit.store(ring_memory);
  const std::uint32_t number = recordings.fetch_add(1) + 1;
  armed.store(number, std::memory_order_release);
  return number;
}
void disarm(std::uint32_t number) { armed.compare_exchange_strong(number, 0); }

Ring* of_this_thread(std::uint32_t number, EventSource source) {
  if (ring != nullptr && ring->recording == number) return ring;
  Ring* r = ring != nullptr ? ring : adopt(source);
  if (r != nullptr && r->recording != number) {
    r->recording = number;
    ThreadNames::note_this_thread(&r->note);
    r->depth.fill(0);
    r->lost_events = 0;
    r->lost_graph_nodes = false;
  }
  return r;
}
Ring* all() { return list.load(std::memory_order_acquire); }
void retire_unreported() {
  for (Ring* r = all(); r != nullptr; r = r->next) {
    const std::uint32_t thread = r->unreported.load(std::memory_order_acquire);
    if (thread == 0 || syscall(SYS_tgkill, getpid(), thread, 0) == 0 || errno != ESRCH) continue;
    r->unreported.store(0, std::memory_order_relaxed);
    r->state.store(Ring::kRetired, std::memory_order_release);
  }
}
std::size_t memory() { return memory_used.load(std::memory_order_relaxed); }
std::uint64_t events_without_ring(EventSource source) {
  return ringless[static_cast<std::size_t>(source)].load(std::memory_order_relaxed);
}

void after_fork_in_child() {
  armed.store(0);
  list.store(nullptr);  // the child's copies of the parent's rings stay unused
  memory_used.store(0);
  ring = nullptr;
  retire.set(nullptr);
}

}  // namespace cutrace::rings
