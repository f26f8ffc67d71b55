// Metrics of single instructions: CUPTI patches the code of a kernel so that it counts while it runs, once.
#pragma once

#include "../collector/driver.h"
#include "../collector/source_lines.h"
#include "context_counter.h"

#include <compare>
#include <map>

namespace cutrace {

// Sums over the launches of a process.
struct InstructionSums {
  struct Place {
    std::uint32_t device = 0, crc = 0;
    std::string function;
    std::uint32_t offset = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Sum {
    SourceLine source;
    std::uint64_t launches = 0;  // that had this instruction
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
  bool configured_ = false;
  std::map<std::uint64_t, std::size_t> places_;  // of metrics, by CUPTI's id
};

}  // namespace cutrace
