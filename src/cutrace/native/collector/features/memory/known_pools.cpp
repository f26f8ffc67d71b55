#include "known_pools.h"

#include "cuda/driver.h"

namespace cutrace {
namespace {

constexpr std::uint8_t kCreated = CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_CREATED;
constexpr std::uint8_t kDestroyed = CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_DESTROYED;
constexpr std::uint8_t kTrimmed = CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_TRIMMED;

CUmemoryPool handle_of(const Live& pool) { return reinterpret_cast<CUmemoryPool>(static_cast<std::uintptr_t>(pool.address)); }

// `ask`: the pool exists, so the driver may be asked. Other processes than the owner cannot learn the size of a pool.
rows::MemoryPools row_of(const Live& pool, std::uint8_t operation, bool ask) {
  rows::MemoryPools row;
  row.address = pool.other;
  row.device = pool.device;
  row.operation = operation;
  row.pool_type = pool.pool_type;
  PoolInfo info;
  if (!ask || pool.pool_type != kLocalPool || !pool_info(handle_of(pool), info)) return row;
  row.size = info.reserved;
  row.used = info.used;
  row.release_threshold = info.release_threshold;
  return row;
}

}  // namespace

void KnownPools::reset(std::size_t limit) {
  const std::lock_guard lock(mutex_);
  pools_.reset(limit);
  memory_.store(0);
}

SeenPool KnownPools::use(const PoolUse& use) {
  const std::lock_guard lock(mutex_);
  if (Live* const known = pools_.find(Space::pool, use.handle)) {
    was_used(*known);
    return {known->other, false, std::nullopt};
  }
  SeenPool seen;
  const bool of_another = pools_.find(Space::pool_base, use.base) != nullptr;  // so it is not the base of this pool
  seen.base = of_another ? use.handle : use.base;
  if (!use.lives || use.ended != ended_.load()) return seen;
  seen.unlisted = !add(use.handle, seen.base, use.device, use.type);
  if (!seen.unlisted) seen.created = row_of(*pools_.find(Space::pool, use.handle), kCreated, true);
  return seen;
}

std::uint64_t KnownPools::used_of(std::uint64_t base) {
  const std::lock_guard lock(mutex_);
  const Live* const by_base = pools_.find(Space::pool_base, base);
  if (by_base == nullptr) return 0;
  Live* const pool = pools_.find(Space::pool, by_base->other);
  if (pool == nullptr) return 0;
  pool->context = contexts_ended_.load();
  return pool_used(handle_of(*pool));
}

std::optional<rows::MemoryPools> KnownPools::begin_destroy(std::uint64_t handle, bool now) {
  const std::lock_guard lock(mutex_);
  ended_.fetch_add(1);
  const auto pool = pools_.take(Space::pool, handle);
  if (!pool) return std::nullopt;
  pools_.take(Space::pool_base, pool->other);
  return row_of(*pool, kDestroyed, now);
}

void KnownPools::undo_destroy(std::uint64_t handle, const rows::MemoryPools& row) {
  const std::lock_guard lock(mutex_);
  add(handle, row.address, row.device, row.pool_type);
}

std::optional<rows::MemoryPools> KnownPools::trimmed(std::uint64_t handle, std::uint64_t minimum) {
  const std::lock_guard lock(mutex_);
  Live* const pool = pools_.find(Space::pool, handle);
  if (pool == nullptr) return std::nullopt;
  was_used(*pool);
  rows::MemoryPools row = row_of(*pool, kTrimmed, true);
  row.minimum = minimum;
  pool->bytes = row.size;
  return row;
}

void KnownPools::before_wait() {
  const std::lock_guard lock(mutex_);
  pools_.each([&](Live& pool) {
    if (may_ask(pool) && pool.bytes == 0) pool.bytes = pool_reserved(handle_of(pool));
  });
}

std::optional<rows::MemoryPools> KnownPools::shrunk(Live& pool) {
  if (!may_ask(pool) || pool.bytes == 0) return std::nullopt;
  const std::uint64_t now = pool_reserved(handle_of(pool));
  const bool smaller = now < pool.bytes;
  pool.bytes = now;
  if (!smaller) return std::nullopt;
  return row_of(pool, kTrimmed, true);
}

bool KnownPools::add(std::uint64_t handle, std::uint64_t base, std::uint16_t device, std::uint8_t type) {
  Live by_handle;
  by_handle.address = handle;
  by_handle.space = Space::pool;
  by_handle.other = base;
  by_handle.device = device;
  by_handle.pool_type = type;
  was_used(by_handle);
  Live by_base;
  by_base.address = base;
  by_base.space = Space::pool_base;
  by_base.other = handle;
  const bool added = pools_.add(by_handle) && pools_.add(by_base);
  if (!added) pools_.take(Space::pool, handle);
  memory_.store(pools_.memory(), std::memory_order_relaxed);
  return added;
}

void KnownPools::was_used(Live& pool) {
  pool.bytes = 0;
  pool.context = contexts_ended_.load();
}

bool KnownPools::may_ask(const Live& pool) const {
  return pool.space == Space::pool && pool.pool_type == kLocalPool && pool.context == contexts_ended_.load();
}

}  // namespace cutrace
