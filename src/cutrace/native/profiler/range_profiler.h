// Hardware metrics of one CUDA context: of a kernel, which CUPTI runs as often as the metrics need passes, with the memory that it
// wrote restored in between; or of all that the context does between two moments, in one pass.
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
  std::vector<const char*> names_;  // the same
  CUpti_Profiler_Host_Object* host_ = nullptr;
  CUpti_RangeProfiler_Object* profiler_ = nullptr;
  std::vector<std::uint8_t> availability_, config_, image_;
};

}  // namespace cutrace
