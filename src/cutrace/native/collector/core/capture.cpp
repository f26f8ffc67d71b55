#include "capture.h"

namespace cutrace {
namespace {

iovec piece(const void* data, std::size_t size) { return {const_cast<void*>(data), size}; }

// Unresolved references are retried at the next flush, up to this many bytes.
constexpr std::size_t kPatience = 4 << 20;

}  // namespace

bool Capture::flush_strings(bool last) {
  const auto& heads = strings_.pending_heads();
  if (heads.empty()) return true;
  const iovec payload[] = {piece(heads.data(), heads.size() * sizeof heads[0]),
                           piece(strings_.pending_bytes().data(), strings_.pending_bytes().size())};
  const auto count = static_cast<std::uint32_t>(heads.size() / 2);
  const Written result = file_.append({rows::kStringsBlock, 0, count, 0, 0, last}, payload);
  if (result != Written::yes) return false;
  strings_.written();
  return true;
}

bool Capture::flush_references(bool last) {
  bool good = flush_strings(last);
  each_referred([&](auto& table) {
    if (good && !table.rows.empty() && (good = write(table, last) == Written::yes)) table.clear();
  });
  return good;
}

// Gives up all unwritten references together when they take too much memory, because strings, launches and rows refer to each
// other. The tables must hold no row that refers to them.
void Capture::give_up_references() {
  std::size_t bytes = strings_.pending_bytes().size();
  each_referred([&](const auto& table) { bytes += table.rows.size() * sizeof table.rows[0]; });
  if (bytes < kPatience) return;
  lose(rows::Loss::table_limit, strings_.pending_heads().size() / 2, "strings");
  each_referred([&]<typename Row>(const TableBuffer<Row>& table) { lose(rows::Loss::table_limit, table.rows.size(), Row::kName); });
  drop_references();
}

// Call it when all tables are flushed: then no unwritten row refers to the references.
void Capture::drop_references() {
  strings_.clear();
  strings_.written();
  launches_.clear();
  quick_functions_ = {};
  ++files_;  // functions are written again
  each_referred([](auto& table) { table.clear(); });
}

void Capture::add_graph_node(std::uint64_t id) {
  if (id == 0) return;
  const GraphNodes::Node* const node = graph_nodes_.first_use(id, files_);
  if (node == nullptr) return;
  rows::GraphNodes row;
  row.created = node->created;
  row.graph_node = id;
  row.original = node->original;
  row.ranges = node->ranges != nullptr ? string(node->ranges->first) : 0;
  row.thread = node->thread;
  add(row);
}

void Capture::flush(bool last) {
  flush_references(last);
  std::apply([&](auto&... table) { (flush(table, last), ...); }, tables_);
  give_up_references();
  lose(rows::Loss::table_limit, graph_nodes_.take_dropped(), "graph nodes");
  if (!losses_.empty()) {
    // References that cannot be written must not use the space reserved for losses.
    if (last && !flush_references(last)) drop_references();
    auto& table = std::get<TableBuffer<rows::Losses>>(tables_);
    for (const auto& [key, count] : losses_) {
      rows::Losses row;
      row.time = now_ns();
      row.count = count;
      row.reason = static_cast<std::uint16_t>(key.first);
      row.detail = string(key.second);
      table.add(row);
    }
    // Losses that cannot be written are kept for the next flush.
    if (flush_references(last) && write(table, last) == Written::yes) {
      for (const auto& [key, count] : losses_) contents_.losses[key] += count;
      losses_.clear();
    }
    table.clear();
  }
  if (strings_.full() || launches_.full()) {
    strings_.clear();
    launches_.clear();
  }
}

Capture::Contents Capture::begin_file() {
  drop_references();
  const auto write = [this](const auto& entry) { add_object_info(entry.row, entry.name, entry.other); };
  std::apply([&](const auto&... info) { (info.each(write), ...); }, object_info_);
  lose(rows::Loss::table_limit, std::exchange(object_info_dropped_, 0), "streams and names that only an earlier file has");
  events_ = 0;
  return std::exchange(contents_, {});
}

void Capture::rotated_out(const Contents& contents) {
  for (const auto& [table, count] : contents.rows) losses_[{rows::Loss::let_go, std::string(table)}] += count;
  for (const auto& [key, count] : contents.losses)
    if (key.first != rows::Loss::unknown_time) losses_[key] += count;  // already counted as rows
}

bool Capture::process(std::string_view json, bool last) {
  const iovec payload = piece(json.data(), json.size());
  return file_.append({rows::kProcessBlock, 0, 1, 0, 0, last}, {&payload, 1}) == Written::yes;
}

std::size_t Capture::memory() const {
  const std::size_t tables = std::apply(
      [](const auto&... table) { return (std::size_t{0} + ... + (table.rows.capacity() * sizeof(table.rows[0]))); },
      tables_);
  const std::size_t object_info =
      std::apply([](const auto&... info) { return (std::size_t{0} + ... + info.memory()); }, object_info_);
  return tables + object_info + strings_.memory() + launches_.memory() + graph_nodes_.memory();
}

}  // namespace cutrace
