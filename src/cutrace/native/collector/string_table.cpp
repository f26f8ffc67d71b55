#include "string_table.h"

namespace cutrace {

const StringTable::Entry& StringTable::find(std::string_view text) {
  text = text.substr(0, kLongest);
  if (const auto it = ids_.find(text); it != ids_.end()) return *it;
  heads_.push_back(next_id_);
  heads_.push_back(static_cast<std::uint32_t>(text.size()));
  bytes_.insert(bytes_.end(), text.begin(), text.end());
  text_bytes_ += text.size();
  return *ids_.emplace(text, next_id_++).first;
}

void StringTable::clear() {
  ids_ = {};
  text_bytes_ = 0;
}

void StringTable::written() {
  heads_.clear();
  bytes_.clear();
}

}  // namespace cutrace
