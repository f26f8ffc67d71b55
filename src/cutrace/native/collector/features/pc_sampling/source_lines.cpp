#include "source_lines.h"

#include <cstdlib>
#include <memory>
#include <utility>

namespace cutrace {

bool SourceLines::add(const void* cubin, std::size_t size) {
  const auto* bytes = static_cast<const char*>(cubin);
  const std::lock_guard lock(mutex_);
  if (size > room_) return false;
  added_.emplace_back(bytes, bytes + size);
  room_ -= size;
  return true;
}

void SourceLines::drop_repeated() {
  const std::lock_guard lock(mutex_);
  sort_added();
}

void SourceLines::sort_added() {
  if (cupti_.GetCubinCrc == nullptr) return;
  for (; !added_.empty(); added_.pop_front()) {
    CUpti_GetCubinCrcParams params{};
    params.size = CUpti_GetCubinCrcParamsSize;
    params.cubin = added_.front().data();
    params.cubinSize = added_.front().size();
    // Without a checksum nothing can look the module up.
    if (cupti_.GetCubinCrc(&params) != CUPTI_SUCCESS || modules_.contains(params.cubinCrc))
      room_ += params.cubinSize;
    else
      modules_.emplace(params.cubinCrc, std::move(added_.front()));
  }
}

const SourceLines::Module* SourceLines::module(std::uint64_t crc) {
  const std::lock_guard lock(mutex_);
  sort_added();
  const auto found = modules_.find(crc);
  return found == modules_.end() ? nullptr : &found->second;
}

SourceLine SourceLines::find(std::uint64_t crc, const char* function, std::uint64_t offset) {
  if (cupti_.GetCubinCrc == nullptr || cupti_.GetSassToSourceCorrelation == nullptr) return {};
  const Module* const cubin = module(crc);
  if (cubin == nullptr) return {};
  CUpti_GetSassToSourceCorrelationParams params{};
  params.size = CUpti_GetSassToSourceCorrelationParamsSize;
  params.cubin = cubin->data();
  params.cubinSize = cubin->size();
  params.functionName = function;
  params.pcOffset = offset;
  const bool found = cupti_.GetSassToSourceCorrelation(&params) == CUPTI_SUCCESS;
  const std::unique_ptr<char, void (*)(void*)> file(params.fileName, &std::free), folder(params.dirName, &std::free);
  if (!found || file == nullptr || *file == '\0') return {};
  std::string path = file.get();
  if (path.front() != '/' && folder != nullptr && *folder != '\0') path = std::string(folder.get()) + "/" + path;
  return {std::move(path), params.lineNumber};
}

}  // namespace cutrace
