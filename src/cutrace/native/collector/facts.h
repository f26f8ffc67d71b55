// What CUPTI, NVTX and the system tell once, and every file of a recording has to hold: devices, contexts, streams, names.
// Writer thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "cutrace/rows.h"

namespace cutrace {

// A row with the texts it refers to, whose numbers differ from file to file.
template <typename Row>
struct Fact {
  Row row;
  std::string name;
  std::string other;  // PCI address of a device, domain of a category
};

template <typename Row>
class Facts {
 public:
  // Keeps a fact, in place of what is known of the same thing. False when there are too many.
  bool keep(const Row& row, std::string_view name, std::string_view other) {
    const Key key = key_of(row, other);
    if (facts_.size() >= kMost && !facts_.contains(key)) return false;
    facts_.insert_or_assign(key, Fact<Row>{row, std::string(name), std::string(other)});
    return true;
  }
  template <typename Visit>
  void each(Visit&& visit) const {
    for (const auto& [key, fact] : facts_) visit(fact);
  }
  std::size_t memory() const { return facts_.size() * (sizeof(Fact<Row>) + sizeof(Key) + 48); }

 private:
  // Programs that make a stream for each request never run out of them.
  static constexpr std::size_t kMost = 16'384;

  using Key = std::tuple<std::uint64_t, std::uint32_t, std::string>;

  // By value: fields of packed rows take no references.
  static Key key(std::uint64_t id, std::uint32_t second = 0, std::string_view text = {}) {
    return {id, second, std::string(text)};
  }
  static Key key_of(const rows::Devices& row, std::string_view) { return key(row.device); }
  static Key key_of(const rows::Contexts& row, std::string_view) { return key(row.context); }
  static Key key_of(const rows::Streams& row, std::string_view) { return key(row.stream, row.context); }
  static Key key_of(const rows::Threads& row, std::string_view) { return key(row.thread, row.source); }
  static Key key_of(const rows::ResourceNames& row, std::string_view) {
    return key(row.object, (std::uint32_t{row.kind} << 16) | row.context);
  }
  static Key key_of(const rows::NvtxCategories& row, std::string_view domain) { return key(row.category, 0, domain); }

  std::map<Key, Fact<Row>> facts_;
};

}  // namespace cutrace
