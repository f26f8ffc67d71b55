// The tables of a capture in the making: rows go in, blocks come out. Writer thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "block_file.h"
#include "clock.h"
#include "cutrace/rows.h"
#include "interning.h"

namespace cutrace {

template <typename Row>
struct TableBuffer {
  std::vector<Row> rows;
  std::uint64_t first_time = 0;
  std::uint64_t last_time = 0;

  void add(const Row& row) {
    rows.push_back(row);  // first: it may throw
    if constexpr (Row::kTable >= rows::Clocks::kTable) {
      // Clocks and losses speak of the capture itself and have no place in its time range.
    } else if constexpr (requires { row.end; }) {
      note(row.start, row.end);
    } else if constexpr (requires { row.time; }) {
      note(row.time, row.time);
    }
  }
  void clear() {
    rows.clear();
    first_time = last_time = 0;
  }

 private:
  void note(std::uint64_t start, std::uint64_t end) {  // 0 is an unknown time
    if (start != 0 && (first_time == 0 || start < first_time)) first_time = start;
    last_time = std::max({last_time, start, end});
  }
};

// What CUPTI, NVTX and the system tell once, and every file of a recording has to hold: devices, contexts, streams, names.
template <typename Row>
class Facts {
 public:
  // A row with the texts it refers to, whose numbers differ from file to file.
  struct Fact {
    Row row;
    std::string name;
    std::string other;  // PCI address of a device, domain of a category
  };
  // Keeps a fact, in place of what is known of the same thing. False when there are too many.
  bool keep(const Row& row, std::string_view name, std::string_view other) {
    const Key key = key_of(row, other);
    if (facts_.size() >= kMost && !facts_.contains(key)) return false;
    facts_.insert_or_assign(key, Fact{row, std::string(name), std::string(other)});
    return true;
  }
  template <typename Visit>
  void each(Visit&& visit) const {
    for (const auto& [key, fact] : facts_) visit(fact);
  }
  std::size_t memory() const { return facts_.size() * (sizeof(Fact) + sizeof(Key) + 48); }

 private:
  // Programs that make a stream for each request never run out of them.
  static constexpr std::size_t kMost = 16'384;

  using Key = std::tuple<std::uint64_t, std::uint32_t, std::string>;

  static Key key_of(const Row& row, std::string_view other) {
    // By value: fields of packed rows take no references.
    const auto key = [](std::uint64_t id, std::uint32_t second = 0, std::string_view text = {}) {
      return Key{id, second, std::string(text)};
    };
    if constexpr (requires { row.source; }) return key(row.thread, row.source);
    else if constexpr (requires { row.object; }) return key(row.object, (std::uint32_t{row.kind} << 16) | row.context);
    else if constexpr (requires { row.category; }) return key(row.category, 0, other);
    else if constexpr (requires { row.stream; }) return key(row.stream, row.context);
    else if constexpr (requires { row.null_stream; }) return key(row.context);
    else return key(row.device);
  }

  std::map<Key, Fact> facts_;
};

class Capture {
 public:
  // What a file tells of the program, and what of it was lost.
  struct Contents {
    std::map<std::string_view, std::uint64_t> rows;  // by table
    std::map<std::pair<rows::Loss, std::string>, std::uint64_t> losses;
  };

  // Half of `table_memory` bounds the texts, half the launch configurations.
  explicit Capture(std::size_t table_memory)
      : strings_(table_memory / 2), launches_(table_memory / 2 / (2 * sizeof(rows::Launches))) {}

  BlockFile& file() { return file_; }
  const BlockFile& file() const { return file_; }

  template <typename Row>
  void add(const Row& row) {
    auto& table = std::get<TableBuffer<Row>>(tables_);
    table.add(row);
    ++rows_;
    if (tells_of_the_program(row)) ++events_;
    if (table.rows.size() * sizeof(Row) >= kBlockBytes) flush(table);
  }

  // A row that each file of the recording must hold. Its texts are given here, its fields for them stay 0; `other` is the
  // PCI address of a device, the domain of a category.
  template <typename Row>
  void fact(const Row& row, std::string_view name = {}, std::string_view other = {}) {
    add_fact(row, name, other);
    if (!std::get<Facts<Row>>(facts_).keep(row, name, other)) ++facts_forgotten_;
  }

  std::uint32_t string(std::string_view text) { return strings_.intern(text); }
  std::uint32_t launch(const rows::Launches& row, const char* name) {
    return launches_.intern(row, name, strings_, [this](const rows::Launches& full) { add(full); });
  }
  // `name` is asked for at the first use of a function only: name() -> std::string_view.
  template <typename Name>
  std::uint16_t function(std::uint16_t domain, std::uint32_t callback, std::uint32_t status, Name&& name) {
    const auto key = std::make_tuple(domain, callback, status);
    const bool quick = status == 0 && domain < kQuickDomains && callback < kQuickCallbacks;
    if (quick && quick_functions_[domain][callback] != 0) return quick_functions_[domain][callback];
    auto it = functions_.find(key);
    if (it == functions_.end()) {
      if (functions_.size() >= 0xFFFF) return lose(rows::Loss::table_limit, 1, "functions"), 0;
      it = functions_.emplace(key, Function{static_cast<std::uint16_t>(functions_.size() + 1), 0}).first;
    }
    Function& function = it->second;
    if (function.file != files_) {
      function.file = files_;
      rows::Functions row;
      row.id = function.id;
      row.domain = domain;
      row.callback = callback;
      row.status = status;
      row.name = string(name());
      add(row);
    }
    if (quick) quick_functions_[domain][callback] = function.id;
    return function.id;
  }

  void lose(rows::Loss reason, std::uint64_t count, std::string_view detail) {
    if (count == 0) return;
    losses_[{reason, std::string(detail)}] += count;
    ++events_;
  }

  // One process block; `last` when it closes the capture.
  bool process(std::string_view json, bool last);
  // Writes out whatever is there, losses included.
  void flush(bool last = false);
  // Changes when numbers of texts no longer hold.
  std::uint32_t references() const { return files_; }
  // All that is known to be lost is counted in a file.
  bool losses_are_written() const { return losses_.empty(); }
  // The file is a new one: what rows refer to is written again at its first use, under new numbers, and facts at once.
  // Returns what the one before holds.
  Contents begin_file();
  // A file of this recording goes: its rows are losses now, and what was lost in its time stays so.
  void let_go(const Contents& contents);
  // What the program has done in this file, and what of it was lost: 0 while the file says only what each file begins with.
  std::uint64_t events() const { return events_; }

  std::uint64_t rows() const { return rows_; }
  std::size_t memory() const;

 private:
  static constexpr std::size_t kBlockBytes = (1 << 20) - 64;  // a block of 1 MiB with its header
  static constexpr std::size_t kQuickDomains = 3, kQuickCallbacks = 2048;

  struct Function {
    std::uint16_t id;
    std::uint32_t file;  // the latest that it has been written to
  };

  template <typename Row>
  void add_fact(Row row, std::string_view name, std::string_view other) {
    if constexpr (requires { row.name; }) row.name = string(name);
    if constexpr (requires { row.pci; }) row.pci = string(other);
    if constexpr (requires { row.domain; }) row.domain = string(other);
    add(row);
  }

  // Flushing makes CUPTI report overheads, and who cuts a recording marks what lies between the cuts: neither makes a file.
  template <typename Row>
  static bool tells_of_the_program(const Row& row) {
    if constexpr (Row::kTable == rows::NvtxMarks::kTable) return row.source == 0;
    return Row::kTable < rows::Launches::kTable && Row::kTable != rows::Overheads::kTable &&
           Row::kTable != rows::Environment::kTable;
  }

  template <typename Row>
  void flush(TableBuffer<Row>& table, bool last = false);
  // Texts, launch configurations and functions must be in the file before the rows that refer to them.
  bool flush_references(bool last);
  bool flush_strings(bool last);
  void drop_references();
  template <typename Row>
  Written write(const TableBuffer<Row>& table, bool last);

  BlockFile file_;
  StringTable strings_;
  LaunchTable launches_;
  std::map<std::tuple<std::uint16_t, std::uint32_t, std::uint32_t>, Function> functions_;
  std::array<std::array<std::uint16_t, kQuickCallbacks>, kQuickDomains> quick_functions_{};
  std::map<std::pair<rows::Loss, std::string>, std::uint64_t> losses_;
  std::uint64_t rows_ = 0;
  std::uint64_t events_ = 0;
  Contents contents_;  // of this file
  std::uint32_t files_ = 1;
  std::uint64_t facts_forgotten_ = 0;
  std::tuple<Facts<rows::Devices>, Facts<rows::Contexts>, Facts<rows::Streams>, Facts<rows::Threads>,
             Facts<rows::ResourceNames>, Facts<rows::NvtxCategories>>
      facts_;
  template <typename... Rows>
  using Tables = std::tuple<TableBuffer<Rows>...>;
  Tables<rows::Launches, rows::Functions, rows::Devices, rows::Contexts, rows::Streams, rows::Threads,
         rows::ResourceNames, rows::NvtxCategories, rows::Modules, rows::DeviceFunctions, rows::Clocks, rows::Kernels,
         rows::Memcpys, rows::Memsets, rows::ApiCalls, rows::NvtxRanges, rows::NvtxMarks, rows::Synchronizations,
         rows::CudaEvents, rows::Allocations, rows::MemoryPools, rows::Overheads, rows::GraphLaunches,
         rows::ExternalCorrelations, rows::UnifiedMemory, rows::Jit, rows::Environment, rows::PcSamples, rows::Losses>
      tables_;
};

template <typename Row>
Written Capture::write(const TableBuffer<Row>& table, bool last) {
  const iovec payload = {const_cast<Row*>(table.rows.data()), table.rows.size() * sizeof(Row)};
  return file_.append({Row::kTable, sizeof(Row), static_cast<std::uint32_t>(table.rows.size()), table.first_time,
                       table.last_time, last},
                      {&payload, 1});
}

template <typename Row>
void Capture::flush(TableBuffer<Row>& table, bool last) {
  if constexpr (Row::kTable == rows::Launches::kTable || Row::kTable == rows::Functions::kTable) {
    flush_references(last);
  } else {
    if (table.rows.empty()) return;
    const bool ready = flush_references(last);
    const Written result = ready ? write(table, last) : Written::error;
    const std::size_t count = table.rows.size();
    table.clear();  // before what may throw: no row is written twice
    if (result != Written::yes) {
      const bool full = result == Written::size_limit || (!ready && file_.last_errno() == 0);
      lose(full ? rows::Loss::size_limit : rows::Loss::write_error, count, Row::kName);
    } else if (Row::kTable < rows::Launches::kTable) {
      contents_.rows[Row::kName] += count;
    }
  }
}

}  // namespace cutrace
