#include "counters.h"

#include <cstdlib>

namespace cutrace {

bool InstructionCounter::open() {
  const char* const chip = initialize();
  if (chip == nullptr) return false;
  for (const std::string& name : session.metrics) {
    auto metric = CUTRACE_PARAMS(SassMetrics_GetProperties);
    metric.pChipName = chip;
    metric.pMetricName = name.c_str();
    if (!CUTRACE_CALL(SassMetricsGetProperties, metric)) return false;
    places_.try_emplace(metric.metric.metricId, configuration_.size());
    configuration_.push_back({metric.metric.metricId, CUPTI_SASS_METRICS_OUTPUT_GRANULARITY_GPU});
  }
  return true;
}

InstructionCounter::~InstructionCounter() {
  if (!configured_) return;
  auto params = CUTRACE_PARAMS(SassMetricsUnsetConfig);
  params.deviceIndex = device_;
  session.SassMetricsUnsetConfig(&params);
}

bool InstructionCounter::synchronize() {
  if (session.synchronize(context_)) return true;
  error_ = "instructions cannot be counted while a CUDA graph is captured, when the GPU cannot be waited for";
  return false;
}

bool InstructionCounter::begin() {
  if (!synchronize()) return false;  // CUPTI patches no kernel while another one runs
  auto config = CUTRACE_PARAMS(SassMetricsSetConfig);
  config.numOfMetricConfig = configuration_.size();
  config.pConfigs = configuration_.data();
  config.deviceIndex = device_;
  if (!configured_ && !CUTRACE_CALL(SassMetricsSetConfig, config)) return false;
  configured_ = true;
  auto enable = CUTRACE_PARAMS(SassMetricsEnable);
  enable.ctx = context_;
  enable.enableLazyPatching = 1;
  return CUTRACE_CALL(SassMetricsEnable, enable);
}

bool InstructionCounter::end(const Replay&, std::vector<double>&) {
  const bool done = synchronize() && read();
  const std::string why = error_;
  auto disable = CUTRACE_PARAMS(SassMetricsDisable);
  disable.ctx = context_;
  const bool disabled = CUTRACE_CALL(SassMetricsDisable, disable);
  if (!done) error_ = why;
  return done && disabled;
}

bool InstructionCounter::read() {
  auto found = CUTRACE_PARAMS(SassMetricsGetDataProperties);
  found.ctx = context_;
  if (!CUTRACE_CALL(SassMetricsGetDataProperties, found)) return false;
  const std::size_t records = found.numOfPatchedInstructionRecords, instances = found.numOfInstances;
  if (records == 0 || instances == 0) {
    error_ = "CUPTI counted no instruction of the kernel";
    return false;
  }
  // `instances` is documented as the number for each metric, but may be the number for all metrics. This space is enough for
  // both.
  const std::size_t most = instances * places_.size();
  std::vector<CUpti_SassMetrics_InstanceValue> values(records * most);
  std::vector<CUpti_SassMetrics_Data> data(records);
  for (std::size_t i = 0; i < records; ++i) {
    data[i].structSize = sizeof data[i];
    data[i].pInstanceValues = values.data() + i * most;
  }
  auto flush = CUTRACE_PARAMS(SassMetricsFlushData);
  flush.ctx = context_;
  flush.numOfPatchedInstructionRecords = records;
  flush.numOfInstances = instances;
  flush.pMetricsData = data.data();
  const bool flushed = CUTRACE_CALL(SassMetricsFlushData, flush);
  for (const CUpti_SassMetrics_Data& record : data) {
    if (record.functionName == nullptr) continue;
    if (flushed) {
      const auto [place, fresh] = sums_.try_emplace({device_, record.cubinCrc, record.functionName, record.pcOffset});
      InstructionSum& sum = place->second;
      if (fresh) {
        sum.source = lines_.find(record.cubinCrc, record.functionName, record.pcOffset);
        sum.values.resize(places_.size());
      }
      for (std::size_t i = 0; i < most; ++i)
        if (const auto metric = places_.find(record.pInstanceValues[i].metricId); metric != places_.end())
          sum.values[metric->second] += record.pInstanceValues[i].value;
    }
    std::free(const_cast<char*>(record.functionName));
  }
  return flushed;
}

}  // namespace cutrace
