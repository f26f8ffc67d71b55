#include "import/unpack.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace cutrace {
namespace {

constexpr std::uint8_t kMessageTag = 1 << 3 | 2;
constexpr std::size_t kDeepest = 16;

// Reads a varint; false when it does not end before `end` or is longer than ten bytes. Bits above 64 are dropped, as
// protobuf's own readers do.
bool read_varint(const std::uint8_t*& at, const std::uint8_t* end, std::uint64_t& value) {
  if (at < end && *at < 0x80) {
    value = *at++;
    return true;
  }
  std::uint64_t out = 0;
  const auto* p = at;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    if (p == end) return false;
    const std::uint64_t byte = *p++;
    out |= (byte & 0x7F) << (shift < 64 ? shift : 63);
    if (byte < 0x80) {
      at = p;
      value = out;
      return true;
    }
  }
  return false;
}

std::size_t depth(const std::vector<MessagePlan>& nodes, std::size_t node, std::size_t above) {
  if (above > kDeepest) throw std::invalid_argument("the plan nests too deep");
  std::size_t deepest = above;
  for (const FieldPlan& rule : nodes[node].rules)
    if (rule.act == Act::kEnter || rule.act == Act::kEach)
      deepest = std::max(deepest, depth(nodes, rule.target, above + 1));
  return deepest;
}

}  // namespace

struct Unpacker::Message {
  Unpacked& out;
  std::vector<std::uint64_t>& row;
  bool is_row = false;
  bool reported = false;
  std::size_t entries = 0;
};

Unpacker::Unpacker(std::vector<MessagePlan> nodes, std::size_t columns, std::vector<std::size_t> group_columns)
    : nodes_(std::move(nodes)), columns_(columns), group_columns_(std::move(group_columns)) {
  if (nodes_.empty()) throw std::invalid_argument("a plan has a node");
  const auto group_ok = [&](int group) { return group == -1 || (group >= 0 && static_cast<std::size_t>(group) < group_columns_.size()); };
  for (const MessagePlan& node : nodes_) {
    if (!group_ok(node.group)) throw std::invalid_argument("a node's group is not there");
    const std::size_t width = node.group < 0 ? columns_ : group_columns_[static_cast<std::size_t>(node.group)];
    for (const FieldPlan& rule : node.rules) {
      if (rule.act == Act::kNumber && rule.target >= width) throw std::invalid_argument("a rule's column is not there");
      if (rule.act != Act::kEnter && rule.act != Act::kEach) continue;
      if (rule.target >= nodes_.size()) throw std::invalid_argument("a rule's node is not there");
      const int inner = nodes_[rule.target].group;
      if (rule.act == Act::kEach ? inner < 0 || node.group >= 0 : inner != node.group)
        throw std::invalid_argument("a rule's node is of another group");
    }
  }
  depth(nodes_, 0, 0);
}

bool Unpacker::read_message(Message& message, std::size_t node, const std::uint8_t* at, const std::uint8_t* end) const {
  const MessagePlan& plan = nodes_[node];
  while (at < end) {
    std::uint64_t tag = 0, value = 0;
    if (!read_varint(at, end, tag)) return false;
    const std::uint64_t number = tag >> 3;
    if (number == 0 || number >> 29) return false;
    const std::uint8_t* body = nullptr;
    switch (tag & 7) {
      case 0:
        if (!read_varint(at, end, value)) return false;
        break;
      case 1:
        if (end - at < 8) return false;
        std::memcpy(&value, at, 8);
        at += 8;
        break;
      case 2:
        if (!read_varint(at, end, value) || value > static_cast<std::uint64_t>(end - at)) return false;
        body = at;
        at += value;
        break;
      case 5: {
        if (end - at < 4) return false;
        std::uint32_t half = 0;
        std::memcpy(&half, at, 4);
        value = half;
        at += 4;
        break;
      }
      default: return false;
    }
    const FieldPlan* rule = nullptr;
    for (const FieldPlan& candidate : plan.rules) {
      if (candidate.number == number) {
        rule = &candidate;
        break;
      }
    }
    if (rule == nullptr) continue;
    if ((rule->act == Act::kEnter || rule->act == Act::kEach) != (body != nullptr) && rule->act != Act::kReport) return false;
    message.is_row |= rule->row;
    switch (rule->act) {
      case Act::kNumber:
        if (plan.group < 0)
          message.row[rule->target] = value;
        else
          message.out.groups[static_cast<std::size_t>(plan.group)].columns[rule->target].back() = value;
        break;
      case Act::kReport: message.reported = true; break;
      case Act::kEach: {
        Entries& entries = message.out.groups[static_cast<std::size_t>(nodes_[rule->target].group)];
        if (++message.entries > kMostEntries) return false;
        entries.rows.push_back(static_cast<std::uint32_t>(message.out.columns[0].size()));
        for (auto& column : entries.columns) column.push_back(0);
        [[fallthrough]];
      }
      case Act::kEnter:
        if (!read_message(message, rule->target, body, at)) return false;
        break;
    }
  }
  return true;
}

Unpacked Unpacker::read(const std::uint8_t* data, std::size_t size) const {
  Unpacked out;
  out.columns.resize(std::max<std::size_t>(columns_, 1));
  for (const std::size_t width : group_columns_) {
    out.groups.emplace_back();
    out.groups.back().columns.resize(width);
  }
  std::vector<std::uint64_t> row(out.columns.size());
  const std::uint8_t *at = data, *const end = data + size;
  std::size_t entries = 0;
  while (at < end && entries < kEnough && out.columns[0].size() < kEnough) {
    if (*at != kMessageTag) {
      out.broken = true;
      break;
    }
    const std::uint8_t* body = at + 1;
    std::uint64_t length = 0;
    if (!read_varint(body, end, length)) {
      out.broken = end - at > 10;  // otherwise the rest of the length is to come
      break;
    }
    if (length > kLongest) {
      out.broken = true;
      break;
    }
    if (length > static_cast<std::uint64_t>(end - body)) break;
    std::fill(row.begin(), row.end(), 0);
    Message message{out, row};
    const bool sound = read_message(message, 0, body, body + length);
    const std::size_t rows = out.columns[0].size();
    if (sound && message.reported) {
      out.begins.push_back(static_cast<std::uint64_t>(body - data));
      out.sizes.push_back(static_cast<std::uint32_t>(length));
      out.before.push_back(static_cast<std::uint32_t>(rows));
    }
    if (sound && message.is_row) {
      for (std::size_t i = 0; i < row.size(); ++i) out.columns[i].push_back(row[i]);
    } else {
      for (Entries& group : out.groups) {
        while (!group.rows.empty() && group.rows.back() == rows) {
          group.rows.pop_back();
          for (auto& column : group.columns) column.pop_back();
        }
      }
    }
    entries += message.entries;
    out.bad += !sound;
    at = body + length;
    out.consumed = static_cast<std::size_t>(at - data);
  }
  return out;
}

std::int64_t Nesting::feed(std::uint64_t track, std::uint8_t phase) {
  const std::int64_t number = next_++;
  if (phase != kBegin && phase != kEnd) return -1;
  if (tracks_.entries().empty() || track != last_track_) {
    last_track_ = track;
    last_ = tracks_.place(track);
  }
  auto& open = tracks_.at(last_);
  if (phase == kBegin) {
    open.push_back(number);
    ++open_;
    return -1;
  }
  if (open.empty()) return -1;
  const std::int64_t begin = open.back();
  open.pop_back();
  --open_;
  return begin;
}

std::vector<std::int64_t> Nesting::take_open() {
  std::vector<std::int64_t> out;
  for (const auto& [track, stack] : tracks_.entries()) out.insert(out.end(), stack.begin(), stack.end());
  std::sort(out.begin(), out.end());
  tracks_ = {};
  open_ = 0;
  return out;
}

}  // namespace cutrace
