// Metrics of single instructions: CUPTI patches the code of a kernel so that it counts while it runs.
//
// CUPTI 13.0 counts only the first kernel that is launched after SetConfig and Enable, and a process can read the counts only once.
// So this counts one stretch of launches of one kernel and reads the sums at its end.
#pragma once

#include "../collector/driver.h"
#include "../collector/source_lines.h"
#include "context_counter.h"

#include <compare>
#include <map>

namespace cutrace {

// Sums over a stretch of launches.
struct InstructionSums {
  struct Place {
    std::uint32_t device = 0, crc = 0;
    std::string function;
    std::uint32_t offset = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Sum {
    SourceLine source;
    std::vector<std::uint64_t> values;
  };
  std::map<Place, Sum> sums;
};

class InstructionCounter final : public ContextCounter {
 public:
  InstructionCounter(const CuptiLibrary& cupti, const ProfilerFunctions& functions, const StreamCaptures& captures, SourceLines& lines,
                     InstructionSums& sums)
      : ContextCounter(cupti, functions), captures_(captures), lines_(lines), sums_(sums) {}
  ~InstructionCounter() override;

  bool open(CUcontext context, std::uint32_t device, const std::vector<std::string>& metrics) override;
  bool begin() override;
  bool end(std::vector<double>& values) override;

 private:
  bool synchronize();
  bool read();

  const StreamCaptures& captures_;
  SourceLines& lines_;
  InstructionSums& sums_;
  CUcontext context_ = nullptr;
  std::uint32_t device_ = 0;
  std::vector<CUpti_SassMetrics_Config> configuration_;
  bool configured_ = false;
  std::map<std::uint64_t, std::size_t> places_;  // of metrics, by CUPTI's id
};

}  // namespace cutrace
