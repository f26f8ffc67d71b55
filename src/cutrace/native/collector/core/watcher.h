// Reports to a feature about rows while they are decoded. Writer thread only.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cutrace/rows.h"

namespace cutrace {

// The base class ignores all reports.
class Watcher {
 public:
  // A time longer than the error of the GPU's clock, and longer than a thread takes from a request for a buffer to the launch.
  static constexpr std::uint64_t kSettling = 100'000'000;

  virtual ~Watcher() = default;

  virtual bool watches_ranges() const { return false; }
  // A range has ended, or is open at the time `row.end`. The decoder keeps `fired`, a state of the watcher, with the range.
  virtual void look_at(const rows::NvtxRanges& /*row*/, bool /*open*/, std::string_view /*domain*/, std::string_view /*name*/,
                       std::vector<std::uint32_t>& /*fired*/) {}
  // launched(): a call has submitted work to the GPU. worked(): work has ended. CUPTI reports work only after its end, so only
  // the call shows that work may be running.
  virtual bool watches_work() const { return false; }
  virtual void launched(std::uint32_t /*correlation*/, std::uint64_t /*time*/) {}
  virtual void worked(std::uint32_t /*device*/, std::uint32_t /*correlation*/, std::uint64_t /*start*/, std::uint64_t /*end*/) {}
  // Records of GPU work before `time` are missing, so a GPU that seems idle before `time` may have been busy.
  virtual void lose_work(std::uint64_t /*time*/) {}
  // `bytes` is negative for a release.
  virtual void memory_changed(std::uint32_t /*device*/, std::uint64_t /*time*/, std::int64_t /*bytes*/) {}
};

}  // namespace cutrace
