// Hardware metrics of one CUDA context: either of a kernel, which CUPTI runs once per pass and whose writes it restores in between,
// or of all work of the context between two times, in one pass.
#pragma once

#include "context_counter.h"

namespace cutrace {

class RangeProfiler final : public ContextCounter {
 public:
  enum class Of { kernel, range };
  RangeProfiler(const CuptiLibrary& cupti, const ProfilerFunctions& functions, Of of = Of::kernel)
      : ContextCounter(cupti, functions), of_(of) {}
  ~RangeProfiler() override { close(); }

  bool open(CUcontext context, std::uint32_t device, const std::vector<std::string>& metrics) override;
  bool begin() override;
  bool end(std::vector<double>& values) override;

 private:
  bool configure(CUcontext context, std::uint32_t device);
  void close();

  const Of of_;
  std::vector<std::string> metrics_;
  std::vector<const char*> names_;  // pointers into metrics_
  CUpti_Profiler_Host_Object* host_ = nullptr;
  CUpti_RangeProfiler_Object* profiler_ = nullptr;
  std::vector<std::uint8_t> availability_, config_, image_;
};

}  // namespace cutrace
