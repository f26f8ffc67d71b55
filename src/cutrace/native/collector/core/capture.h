// The tables of a capture that is being written: rows go in, blocks come out. Writer thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "block_file.h"
#include "clock.h"
#include "cutrace/rows.h"
#include "features/graph_nodes/graph_nodes.h"
#include "interning.h"
#include "row_filter.h"

namespace cutrace {

template <typename Row>
struct TableBuffer {
  std::vector<Row> rows;
  std::uint64_t first_time = 0;
  std::uint64_t last_time = 0;

  void add(const Row& row) {
    rows.push_back(row);  // first: it may throw
    if constexpr (Row::kTable >= rows::Clocks::kTable) {
      // Clocks and losses are about the capture itself and do not extend its time range.
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

// Rows that describe objects (devices, contexts, streams, names). CUPTI, NVTX and the system report each object once, but
// every file of a recording needs its row.
template <typename Row>
class ObjectInfo {
 public:
  // A row and its strings. String ids differ from file to file, so the strings are kept.
  struct Entry {
    Row row;
    std::string name;
    std::string other;  // PCI address of a device, domain of a category
  };
  // Whether exactly this row is kept, and so is in the current file.
  bool has(const Row& row, std::string_view name, std::string_view other) const {
    const auto it = entries_.find(key_of(row, other));
    if (it == entries_.end() || it->second.name != name || it->second.other != other) return false;
    return std::memcmp(&it->second.row, &row, sizeof row) == 0;
  }
  // Keeps a row and replaces an earlier row of the same object. False when there are too many rows.
  bool keep(const Row& row, std::string_view name, std::string_view other) {
    const Key key = key_of(row, other);
    if (entries_.size() >= kMost && !entries_.contains(key)) return false;
    entries_.insert_or_assign(key, Entry{row, std::string(name), std::string(other)});
    return true;
  }
  template <typename Visit>
  void each(Visit&& visit) const {
    for (const auto& [key, entry] : entries_) visit(entry);
  }
  std::size_t memory() const { return entries_.size() * (sizeof(Entry) + sizeof(Key) + 48); }

 private:
  // A limit, because some programs make a stream for each request.
  static constexpr std::size_t kMost = 16'384;

  using Key = std::tuple<std::uint64_t, std::uint32_t, std::string>;

  static Key key_of(const Row& row, std::string_view other) {
    // By value: a packed field cannot bind to a reference.
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

  std::map<Key, Entry> entries_;
};

class Capture {
 public:
  // The number of program rows in a file by table, and its losses.
  struct Contents {
    std::map<std::string_view, std::uint64_t> rows;  // by table
    std::map<std::pair<rows::Loss, std::string>, std::uint64_t> losses;
  };

  // `table_memory` limits the memory for the origins of graph nodes. Half as much limits the strings, and half the launch
  // configurations.
  explicit Capture(std::size_t table_memory)
      : strings_(table_memory / 2), launches_(table_memory / 2 / (2 * sizeof(rows::Launches))), graph_nodes_(table_memory) {}

  BlockFile& file() { return file_; }
  const BlockFile& file() const { return file_; }

  // Keeps only the rows that the filter keeps.
  void set_filter(RowFilter* filter) { filter_ = filter; }
  RowFilter* filter() const { return filter_; }
  bool keeps_nothing() const { return filter_ != nullptr && filter_->keeps_nothing(); }
  // Whether add() keeps this row. Ask before filling in a row.
  template <typename Row>
  bool keeps(const Row& row) const {
    if constexpr (Row::kTable < rows::Launches::kTable)  // rows of other tables describe the objects of these rows
      return filter_ == nullptr || filter_->keeps(RowFilter::facts_of(row));
    return true;
  }

  template <typename Row>
  void add(const Row& row) {
    if (!keeps(row)) return;
    auto& table = std::get<TableBuffer<Row>>(tables_);
    table.add(row);
    ++rows_;
    if constexpr (requires { row.graph_node; row.graph; }) {
      add_graph_node(row.graph_node);
      has_gpu_work_ = true;
    }
    if constexpr (Row::kTable == rows::GraphLaunches::kTable) has_gpu_work_ = true;
    if (is_program_event(row)) ++events_;
    if (table.rows.size() * sizeof(Row) >= kBlockBytes) flush(table);
  }

  // Adds a row that each file of the recording must hold. The string fields of `row` stay 0: `name` and `other` are its strings.
  // `other` is the PCI address of a device or the domain of a category.
  template <typename Row>
  void object_info(const Row& row, std::string_view name = {}, std::string_view other = {}) {
    if (std::get<ObjectInfo<Row>>(object_info_).has(row, name, other)) return;
    add_object_info(row, name, other);
    if (!std::get<ObjectInfo<Row>>(object_info_).keep(row, name, other)) ++object_info_dropped_;
  }

  // Rows of GPU work refer to graph nodes. A file gets a node's row when a row first refers to the node.
  GraphNodes& graph_nodes() { return graph_nodes_; }
  bool has_gpu_work() const { return has_gpu_work_; }

  std::uint32_t string(std::string_view text) { return strings_.intern(text); }
  std::uint32_t launch(const rows::Launches& row, const char* name) {
    return launches_.intern(row, name, strings_, [this](const rows::Launches& full) { add(full); });
  }
  // name() -> std::string_view is called only at the first use of a function in a file.
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
    if (count == 0 || keeps_nothing()) return;
    losses_[{reason, std::string(detail)}] += count;
    ++events_;
  }

  // Writes a process block; `last` when it closes the capture.
  bool process(std::string_view json, bool last);
  // Writes all rows, losses included.
  void flush(bool last = false);
  // Changes when string ids become invalid.
  std::uint32_t references() const { return files_; }
  // Whether all counted losses are in the file.
  bool losses_are_written() const { return losses_.empty(); }
  // Starts a new file. Referenced rows are written again at their first use, under new ids; object info is written at once.
  // Returns the contents of the previous file.
  Contents begin_file();
  // Counts the rows of a deleted file of this recording as losses, and adds the file's own losses.
  void rotated_out(const Contents& contents);
  // The number of program events and losses in this file. It is 0 while the file has only the rows that start each file.
  std::uint64_t events() const { return events_; }

  std::uint64_t rows() const { return rows_; }
  std::size_t memory() const;

 private:
  static constexpr std::size_t kBlockBytes = (1 << 20) - 64;  // a block of 1 MiB with its header
  static constexpr std::size_t kQuickDomains = 3, kQuickCallbacks = 2048;

  struct Function {
    std::uint16_t id;
    std::uint32_t file;  // the last file with a row of this function
  };

  void add_graph_node(std::uint64_t id);

  template <typename Row>
  void add_object_info(Row row, std::string_view name, std::string_view other) {
    if constexpr (requires { row.name; }) row.name = string(name);
    if constexpr (requires { row.pci; }) row.pci = string(other);
    if constexpr (requires { row.domain; }) row.domain = string(other);
    add(row);
  }

  // Rows about actions of the program. The other rows describe these; each file has the descriptions that it needs.
  template <typename Row>
  static constexpr bool kOfProgram = Row::kTable < rows::Launches::kTable && Row::kTable != rows::KernelCodes::kTable;
  // Excludes overheads, which CUPTI reports at each flush, and marks of cutrace: they do not make a file worth keeping.
  template <typename Row>
  static bool is_program_event(const Row& row) {
    if constexpr (Row::kTable == rows::NvtxMarks::kTable) return row.source == 0;
    return kOfProgram<Row> && Row::kTable != rows::Overheads::kTable && Row::kTable != rows::Environment::kTable;
  }

  template <typename Row>
  void flush(TableBuffer<Row>& table, bool last = false);
  // Rows that must be in the file before the rows that refer to them, and before other rows that use their strings.
  template <typename Row>
  static constexpr bool kReferred =
      Row::kTable == rows::Launches::kTable || Row::kTable == rows::Functions::kTable ||
      Row::kTable == rows::GraphNodes::kTable || Row::kTable == rows::Frames::kTable || Row::kTable == rows::Stacks::kTable;
  template <typename Visit>
  void each_referred(Visit&& visit) {
    const auto visit_referred = [&]<typename Row>(TableBuffer<Row>& table) {
      if constexpr (kReferred<Row>) visit(table);
    };
    std::apply([&](auto&... table) { (visit_referred(table), ...); }, tables_);
  }
  // Writes the strings and all rows that are kReferred.
  bool flush_references(bool last);
  bool flush_strings(bool last);
  void give_up_references();
  void drop_references();
  template <typename Row>
  Written write(const TableBuffer<Row>& table, bool last);

  BlockFile file_;
  RowFilter* filter_ = nullptr;  // null when all rows are kept
  StringTable strings_;
  LaunchTable launches_;
  GraphNodes graph_nodes_;
  bool has_gpu_work_ = false;
  std::map<std::tuple<std::uint16_t, std::uint32_t, std::uint32_t>, Function> functions_;
  std::array<std::array<std::uint16_t, kQuickCallbacks>, kQuickDomains> quick_functions_{};
  std::map<std::pair<rows::Loss, std::string>, std::uint64_t> losses_;
  std::uint64_t rows_ = 0;
  std::uint64_t events_ = 0;
  Contents contents_;  // of this file
  std::uint32_t files_ = 1;
  std::uint64_t object_info_dropped_ = 0;
  std::tuple<ObjectInfo<rows::Devices>, ObjectInfo<rows::Contexts>, ObjectInfo<rows::Streams>, ObjectInfo<rows::Threads>,
             ObjectInfo<rows::ResourceNames>, ObjectInfo<rows::NvtxCategories>>
      object_info_;
  template <typename... Rows>
  using Tables = std::tuple<TableBuffer<Rows>...>;
  Tables<rows::Launches, rows::Functions, rows::GraphNodes, rows::Frames, rows::Stacks, rows::Devices, rows::Contexts,
         rows::Streams, rows::Threads, rows::ResourceNames, rows::NvtxCategories, rows::Modules, rows::DeviceFunctions,
         rows::Clocks, rows::Kernels, rows::Memcpys, rows::Memsets, rows::ApiCalls, rows::NvtxRanges, rows::NvtxMarks,
         rows::Counters, rows::Synchronizations, rows::CudaEvents, rows::Allocations, rows::MemoryPools, rows::Overheads,
         rows::GraphLaunches, rows::ExternalCorrelations, rows::UnifiedMemory, rows::Jit, rows::Environment,
         rows::PcSamples, rows::CallStacks, rows::KernelCodes, rows::Losses>
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
  if constexpr (kReferred<Row>) {
    flush_references(last);
  } else {
    if (table.rows.empty()) return;
    const bool ready = flush_references(last);
    const Written result = ready ? write(table, last) : Written::error;
    const std::size_t count = table.rows.size();
    table.clear();  // cleared before code that may throw, so that no row is written twice
    if (result != Written::yes) {
      const bool full = result == Written::size_limit || (!ready && file_.last_errno() == 0);
      lose(full ? rows::Loss::size_limit : rows::Loss::write_error, count, Row::kName);
    } else if (kOfProgram<Row>) {
      contents_.rows[Row::kName] += count;
    }
  }
}

}  // namespace cutrace
