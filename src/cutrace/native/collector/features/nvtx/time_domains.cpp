#include "time_domains.h"

#include <time.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "core/clock.h"
#include "registry.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace cutrace::nvtx {
namespace {

constexpr std::size_t kMostPoints = 4096;  // largest number of points of a clock; at the limit every second point is dropped
constexpr int kLongestChain = 8;

std::int64_t read_cycles(void*) {
#if defined(__x86_64__)
  return static_cast<std::int64_t>(__rdtsc());
#elif defined(__aarch64__)
  std::uint64_t count = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return static_cast<std::int64_t>(count);
#else
  return 0;
#endif
}

std::int64_t boottime() { return static_cast<std::int64_t>(now_ns()); }

// A clock of the system that counts nanoseconds.
std::optional<clockid_t> system_clock(std::uint64_t type) {
  switch (type) {
    case NVTX_TIMESTAMP_TYPE_TOOL_PROVIDED:  // nvtxTimestampGet()
    case NVTX_TIMESTAMP_TYPE_CPU_CLOCK_GETTIME_BOOTTIME: return CLOCK_BOOTTIME;
    case NVTX_TIMESTAMP_TYPE_CPU_CLOCK_GETTIME_REALTIME:
    case NVTX_TIMESTAMP_TYPE_CPU_CLOCK_GETTIME_REALTIME_COARSE:
    case NVTX_TIMESTAMP_TYPE_C_TIMESPEC_GET:
    case NVTX_TIMESTAMP_TYPE_CPP_SYSTEM_CLOCK: return CLOCK_REALTIME;
    case NVTX_TIMESTAMP_TYPE_CPU_CLOCK_GETTIME_MONOTONIC:
    case NVTX_TIMESTAMP_TYPE_CPU_CLOCK_GETTIME_MONOTONIC_COARSE:
    case NVTX_TIMESTAMP_TYPE_CPP_STEADY_CLOCK: return CLOCK_MONOTONIC;
    case NVTX_TIMESTAMP_TYPE_CPU_CLOCK_GETTIME_MONOTONIC_RAW: return CLOCK_MONOTONIC_RAW;
    default: return std::nullopt;
  }
}

}  // namespace

// The relations of clocks that programs have registered.
class TimeDomains {
 public:
  using Key = std::pair<std::uint16_t, std::uint64_t>;
  using ClockPoint = TimeConverter::ClockPoint;

  struct Clock {
    std::uint64_t type = NVTX_TIMESTAMP_TYPE_NONE;
    std::int64_t resolution = 0;
    std::uint64_t start = NVTX_TIMER_START_UNKNOWN;
    std::int64_t (*read)(void*) = nullptr;
    void* data = nullptr;
    std::uint64_t base = NVTX_TIMESTAMP_TYPE_TOOL_PROVIDED;  // the clock of the second time in each of `points`
    std::vector<ClockPoint> points{};
  };

  // All members are under the mutex of the guard.
  Clock* find(std::uint16_t domain, std::uint64_t id) {
    const auto clock = clocks_.find({domain, id});
    return clock != clocks_.end() ? &clock->second : nullptr;
  }
  // Null beyond the memory limit.
  Clock* get(std::uint16_t domain, std::uint64_t id) {
    if (Clock* known = find(domain, id)) return known;
    if (!registry_guard().take(sizeof(Clock) + 64)) return nullptr;
    Clock& clock = clocks_[{domain, id}];
    if (id < NVTX_TIME_DOMAIN_ID_STATIC_START) clock.type = id;
    return &clock;
  }
  std::uint64_t new_id() { return next_id_++; }

  static void add(Clock& clock, std::uint64_t base, ClockPoint point) {
    if (clock.base != base) clock.points.clear();
    clock.base = base;
    const auto at = std::ranges::upper_bound(clock.points, point.time, {}, &ClockPoint::time);
    clock.points.insert(at, point);
    if (clock.points.size() <= kMostPoints) return;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < clock.points.size(); i += 2) clock.points[kept++] = clock.points[i];
    clock.points.resize(kept);
  }
  // The function that reads a clock; null for a clock that cannot be read.
  static std::int64_t (*reader(const Clock& clock))(void*) {
    if (clock.read != nullptr) return clock.read;
    return clock.type == NVTX_TIMESTAMP_TYPE_CPU_TSC ? read_cycles : nullptr;
  }

  TimeConverter converter(std::uint16_t domain, std::uint64_t id, int chain) {
    TimeConverter converter;
    const Clock* const clock = find(domain, id);
    const std::uint64_t type = clock != nullptr ? clock->type : id;
    if (clock != nullptr && !clock->points.empty()) {
      const TimeConverter base = clock->base != id && chain != 0 ? this->converter(domain, clock->base, chain - 1) : TimeConverter();
      for (const ClockPoint& point : clock->points)
        if (const auto time = base.convert(point.boottime))
          converter.points_.push_back({point.time, static_cast<std::int64_t>(*time)});
      if (clock->resolution > 0) converter.slope_ = 1e9 / static_cast<double>(clock->resolution);
      if (!converter.points_.empty()) return converter;
    }
    if (const auto system = system_clock(type)) {
      add_system_point(converter, *system, 1);
    } else if (type == NVTX_TIMESTAMP_TYPE_CPP_HIGH_RESOLUTION_CLOCK) {
      // This id means REALTIME in one library and MONOTONIC in the other. No time fits both.
      converter.either_ = true;
      add_system_point(converter, CLOCK_MONOTONIC, 1);
      add_system_point(converter, CLOCK_REALTIME, 1);
    } else if (type == NVTX_TIMESTAMP_TYPE_C_TIME) {
      add_system_point(converter, CLOCK_REALTIME, 1'000'000'000);
    } else if (clock != nullptr && clock->resolution > 0 && clock->start == NVTX_TIMER_START_SYSTEM_BOOT) {
      converter.points_.push_back({0, 0});
      converter.slope_ = 1e9 / static_cast<double>(clock->resolution);
    } else if (clock != nullptr && clock->resolution > 0 && clock->start == NVTX_TIMER_START_UNIX_EPOCH) {
      converter.points_.push_back({0, -static_cast<std::int64_t>(realtime_ahead())});
      converter.slope_ = 1e9 / static_cast<double>(clock->resolution);
    }
    return converter;
  }

 private:
  static void add_system_point(TimeConverter& converter, clockid_t clock, std::int64_t unit) {
    const std::int64_t before = boottime();
    const auto time = static_cast<std::int64_t>(read_clock(clock));
    const std::int64_t middle = before + (boottime() - before) / 2;
    // BOOTTIME itself converts exactly.
    const std::int64_t ahead = clock == CLOCK_BOOTTIME ? 0 : time - middle;
    converter.points_.push_back({0, -ahead});
    converter.slope_ = static_cast<double>(unit);
  }

  std::map<Key, Clock> clocks_;
  std::uint64_t next_id_ = NVTX_TIME_DOMAIN_ID_DYNAMIC_START;
};

namespace {

TimeDomains& domains = *new TimeDomains;

// Without memory the clock stays unknown, and times of it are counted as lost.
template <typename Change>
void change(Change&& change) {
  const std::lock_guard lock(registry_guard().mutex);
  try {
    change();
  } catch (const std::bad_alloc&) {
    ++registry_guard().refused;
  }
}

bool is_predefined(std::uint64_t id) { return id < NVTX_TIME_DOMAIN_ID_STATIC_START; }

}  // namespace

std::uint64_t register_time_domain(std::uint16_t domain, const nvtxTimeDomainAttr_t* attributes) {
  if (attributes == nullptr) return NVTX_TIME_DOMAIN_ID_NONE;
  std::uint64_t id = attributes->timeDomainId;
  const bool given = id >= NVTX_TIME_DOMAIN_ID_STATIC_START && id < NVTX_TIME_DOMAIN_ID_DYNAMIC_START;
  if (id != 0 && !given) return NVTX_TIME_DOMAIN_ID_NONE;
  std::uint64_t registered = NVTX_TIME_DOMAIN_ID_NONE;
  change([&] {
    if (id == 0) id = domains.new_id();
    TimeDomains::Clock* const clock = domains.get(domain, id);
    if (clock == nullptr) return;
    clock->type = attributes->timestampTypeId;
    clock->resolution = attributes->timerResolution;
    clock->start = attributes->timerStart;
    registered = id;
  });
  note_time(domain, registered);
  return registered;
}

void set_timer(std::uint16_t domain, std::uint64_t id, std::int64_t (*read)(void*), void* data) {
  change([&] {
    TimeDomains::Clock* const clock = domains.get(domain, id);
    if (clock == nullptr) return;
    clock->read = read;
    clock->data = data;
  });
  note_time(domain, id);
}

void add_sync_points(std::uint16_t domain, std::uint64_t from, std::uint64_t to, const nvtxSyncPoint_t* points, std::size_t count) {
  if (points == nullptr) return;
  change([&] {
    // A clock that the collector knows is the base of the other clock.
    const bool backward = is_predefined(from) && system_clock(from).has_value() && !(is_predefined(to) && system_clock(to).has_value());
    TimeDomains::Clock* const clock = domains.get(domain, backward ? to : from);
    for (std::size_t i = 0; clock != nullptr && i < std::min(count, kMostPoints); ++i) {
      const nvtxSyncPoint_t& point = points[i];
      if (backward) TimeDomains::add(*clock, from, {point.dst, point.src});
      else TimeDomains::add(*clock, to, {point.src, point.dst});
    }
  });
}

void set_conversion(std::uint16_t domain, std::uint64_t from, std::uint64_t to, double slope, std::int64_t from_time, std::int64_t to_time) {
  change([&] {
    // Two points express the slope.
    constexpr std::int64_t kApart = 1 << 30;
    const double further = slope * static_cast<double>(kApart);
    const bool sensible = further >= 1 && further < 1e18;
    TimeDomains::Clock* const clock = sensible ? domains.get(domain, from) : nullptr;
    if (clock == nullptr) return;
    clock->points.clear();
    TimeDomains::add(*clock, to, {from_time, to_time});
    TimeDomains::add(*clock, to, {from_time + kApart, to_time + static_cast<std::int64_t>(further)});
  });
}

void note_time(std::uint16_t domain, std::uint64_t id) {
  for (int chain = kLongestChain; chain != 0 && id != NVTX_TIMESTAMP_TYPE_TOOL_PROVIDED; --chain) {
    std::int64_t (*read)(void*) = nullptr;
    void* data = nullptr;
    std::uint64_t base = NVTX_TIMESTAMP_TYPE_TOOL_PROVIDED;
    change([&] {
      TimeDomains::Clock* const clock = id == NVTX_TIMESTAMP_TYPE_CPU_TSC ? domains.get(domain, id) : domains.find(domain, id);
      if (clock == nullptr) return;
      read = TimeDomains::reader(*clock);
      data = clock->data;
      base = clock->base;
    });
    if (read != nullptr) {
      // Call it without the lock, because the program's function may call NVTX.
      const std::int64_t before = boottime();
      const std::int64_t time = read(data);
      const std::int64_t after = boottime();
      change([&] {
        if (TimeDomains::Clock* const clock = domains.find(domain, id))
          TimeDomains::add(*clock, NVTX_TIMESTAMP_TYPE_TOOL_PROVIDED, {time, before + (after - before) / 2});
      });
    }
    id = base;
  }
}

TimeConverter TimeConverter::of(std::uint16_t domain, std::uint64_t id) {
  const std::lock_guard lock(registry_guard().mutex);
  return domains.converter(domain, id, kLongestChain);
}

std::optional<std::uint64_t> TimeConverter::convert(std::int64_t time) const {
  __extension__ using Wide = __int128;
  if (points_.empty()) return std::nullopt;
  Wide converted = 0;
  if (either_) {
    // Times of REALTIME are after 2001. Times of MONOTONIC are below 30 years.
    const ClockPoint& point = points_[time > 1'000'000'000'000'000'000 ? 1 : 0];
    converted = Wide{time} + point.boottime;
  } else if (points_.front().time == points_.back().time) {
    if (!slope_) return std::nullopt;
    const ClockPoint& point = points_.back();
    const Wide since = Wide{time} - point.time;
    const double scaled = static_cast<double>(since) * *slope_;
    if (!(scaled > -1e19 && scaled < 1e19)) return std::nullopt;
    // One nanosecond per unit is exact.
    converted = point.boottime + (*slope_ == 1 ? since : static_cast<Wide>(scaled));
  } else {
    auto next = std::ranges::upper_bound(points_, time, {}, &ClockPoint::time);
    if (next == points_.end()) next = std::ranges::lower_bound(points_, points_.back().time, {}, &ClockPoint::time);
    if (next == points_.begin()) next = std::ranges::upper_bound(points_, points_.front().time, {}, &ClockPoint::time);
    const ClockPoint& a = *(next - 1);
    const ClockPoint& b = *next;
    converted = a.boottime + (Wide{time} - a.time) * (Wide{b.boottime} - a.boottime) / (Wide{b.time} - a.time);
  }
  if (converted <= 0 || converted > std::numeric_limits<std::int64_t>::max()) return std::nullopt;
  return static_cast<std::uint64_t>(converted);
}

}  // namespace cutrace::nvtx
