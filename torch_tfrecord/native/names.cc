#include "names.h"

namespace tfr {

int32_t Names::add(const std::string& name) {
  std::vector<uint8_t> padded(name.begin(), name.end());
  padded.resize(name.size() + kSlack);
  const Name fresh(padded.data(), static_cast<int64_t>(name.size()));
  const int32_t found = find(fresh.data, fresh.size);
  if (found != kUnwanted) return found;
  storage_.push_back(std::move(padded));  // a vector that moves keeps its bytes in their place
  names_.push_back(fresh);
  if (names_.size() * 4 > table_.size()) {
    table_.assign(table_.size() * 2, kUnwanted);
    mask_ = table_.size() - 1;
    for (int32_t slot = 0; slot < size() - 1; ++slot) insert(slot);
  }
  insert(size() - 1);
  return size() - 1;
}

void Names::insert(int32_t slot) {
  uint64_t at = names_[static_cast<size_t>(slot)].hash() & mask_;
  while (table_[at] != kUnwanted) at = (at + 1) & mask_;
  table_[at] = slot;
}

}  // namespace tfr
