#include "capture_reader.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "common/crc32c.h"

namespace {

template <typename Row, typename Use>
void each(const cutrace::BlockHeader& h, const char* payload, Use&& use) {
  CHECK_EQUAL(std::size_t{h.row_size}, sizeof(Row));
  for (std::uint32_t i = 0; i < h.rows; ++i) {
    Row row;
    std::memcpy(&row, payload + i * sizeof(Row), sizeof(Row));
    use(row);
  }
}
template <typename Row, typename Use>
void timed(const cutrace::BlockHeader& h, const char* payload, Use&& use) {
  std::uint64_t first = 0, last = 0;
  each<Row>(h, payload, [&](const Row& row) {
    if (row.start != 0 && (first == 0 || row.start < first)) first = row.start;
    last = std::max<std::uint64_t>({last, row.start, row.end});
    use(row);
  });
  CHECK_EQUAL(h.first_time, first);
  CHECK_EQUAL(h.last_time, last);
}

}  // namespace

CaptureReader::CaptureReader(CaptureReader&& other) noexcept = default;
CaptureReader& CaptureReader::operator=(CaptureReader&& other) noexcept = default;
CaptureReader::~CaptureReader() = default;

CaptureReader::CaptureReader(const std::string& path, bool torn) : torn_(torn) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good());
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::size_t at = 0;
  while (at < bytes.size()) {
    cutrace::BlockHeader h;
    if (torn && bytes.size() - at < sizeof h) break;
    CHECK(bytes.size() - at >= sizeof h);
    std::memcpy(&h, bytes.data() + at, sizeof h);
    CHECK(std::memcmp(h.magic, cutrace::kBlockMagic, sizeof h.magic) == 0);
    CHECK_EQUAL(h.header_crc, cutrace::crc32c(bytes.data() + at, 60));
    if (at == 0) first_block = next_block = h.sequence;
    CHECK_EQUAL(h.sequence, next_block++);
    CHECK(at == 0 || (h.pid == pid && h.instance == instance));
    pid = h.pid;
    instance = h.instance;
    const std::size_t size = sizeof h + (h.payload_size + std::size_t{7}) / 8 * 8;
    if (torn && bytes.size() - at < size) break;
    CHECK(bytes.size() - at >= size);
    const char* payload = bytes.data() + at + sizeof h;
    CHECK_EQUAL(h.payload_crc, cutrace::crc32c(payload, h.payload_size));
    block(h, payload);
    at += size;
  }
  CHECK(torn_ || !processes.empty());
}

const std::string& CaptureReader::text(std::uint32_t id) const { return strings.at(id); }

std::uint64_t CaptureReader::lost(cutrace::rows::Loss reason) const {
  std::uint64_t count = 0;
  for (const auto& row : rows<cutrace::rows::Losses>())
    if (row.reason == static_cast<std::uint16_t>(reason)) count += row.count;
  return count;
}

bool CaptureReader::says(const std::string& part) const {
  for (const std::string& json : processes)
    if (json.find(part) != std::string::npos) return true;
  return false;
}

const std::string& CaptureReader::table(std::uint16_t kind) const {
  static const std::string kNone;
  const auto it = tables_.find(kind);
  return it == tables_.end() ? kNone : it->second;
}

void CaptureReader::block(const cutrace::BlockHeader& h, const char* payload) {
  using namespace cutrace::rows;
  if (h.kind == kProcessBlock) {
    processes.emplace_back(payload, h.payload_size);
    return;
  }
  CHECK(torn_ || !processes.empty());
  if (h.kind == kStringsBlock) {
    const char* text = payload + std::size_t{8} * h.rows;
    for (std::uint32_t i = 0; i < h.rows; ++i) {
      std::uint32_t head[2];
      std::memcpy(head, payload + std::size_t{8} * i, 8);
      CHECK(strings.emplace(head[0], std::string(text, head[1])).second);
      text += head[1];
    }
    CHECK_EQUAL(text, payload + h.payload_size);
    return;
  }
  CHECK_EQUAL(std::size_t{h.rows} * h.row_size, std::size_t{h.payload_size});
  tables_[h.kind].append(payload, h.payload_size);
  if (h.kind == Kernels::kTable)
    timed<Kernels>(h, payload, [&](const Kernels& k) { CHECK(launches_.count(std::uint32_t{k.launch})); });
  if (h.kind == ApiCalls::kTable)
    timed<ApiCalls>(h, payload, [&](const ApiCalls& a) { CHECK(functions_.count(std::uint32_t{a.function})); });
  if (h.kind == NvtxRanges::kTable)
    timed<NvtxRanges>(h, payload, [&](const NvtxRanges& r) {
      CHECK(strings.count(std::uint32_t{r.name}) && strings.count(std::uint32_t{r.domain}));
    });
  if (h.kind == Launches::kTable)
    each<Launches>(h, payload, [&](const Launches& l) {
      CHECK(strings.count(std::uint32_t{l.name}));
      launches_.insert(std::uint32_t{l.id});
    });
  if (h.kind == CallStacks::kTable)
    each<CallStacks>(h, payload, [&](const CallStacks& c) { CHECK(stacks_.count(std::uint32_t{c.stack})); });
  if (h.kind == Stacks::kTable)
    each<Stacks>(h, payload, [&](const Stacks& s) {
      CHECK(stacks_.count(std::uint32_t{s.parent}) && frames_.count(std::uint32_t{s.frame}));
      stacks_.insert(std::uint32_t{s.id});
    });
  if (h.kind == Frames::kTable)
    each<Frames>(h, payload, [&](const Frames& f) {
      CHECK(strings.count(std::uint32_t{f.file}) && strings.count(std::uint32_t{f.function}));
      frames_.insert(std::uint32_t{f.id});
    });
  if (h.kind == Functions::kTable)
    each<Functions>(h, payload, [&](const Functions& f) {
      CHECK(strings.count(std::uint32_t{f.name}));
      functions_.insert(std::uint32_t{f.id});
    });
}
