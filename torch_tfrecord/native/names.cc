#include "names.h"

namespace tfr {

int32_t Names::add(const std::string& name) {
  std::vector<uint8_t> padded(name.begin(), name.end());
  padded.resize(name.size() + kSlack);
  const auto size = static_cast<int64_t>(name.size());
  const int32_t found = find(padded.data(), size);
  if (found != kUnwanted) return found;
  names_.push_back({size, std::move(padded)});
  rebuild();
  return static_cast<int32_t>(names_.size()) - 1;
}

void Names::rebuild() {
  size_t capacity = table_.empty() ? 16 : table_.size();
  while (capacity < names_.size() * 4) capacity *= 2;
  if (capacity == table_.size()) {  // grows by doubling, so adding n names costs O(n)
    insert(static_cast<int32_t>(names_.size()) - 1);
    return;
  }
  table_.assign(capacity, kUnwanted);
  mask_ = capacity - 1;
  for (int32_t slot = 0; slot < size(); ++slot) insert(slot);
}

void Names::insert(int32_t slot) {
  const Name& name = names_[static_cast<size_t>(slot)];
  uint64_t at = hash(name.padded.data(), name.size) & mask_;
  while (table_[at] != kUnwanted) at = (at + 1) & mask_;
  table_[at] = slot;
}

}  // namespace tfr
