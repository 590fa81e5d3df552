#include "example.h"

#include <algorithm>
#include <cstring>

#include "varint.h"

namespace tfr {
namespace {

constexpr uint32_t tag_of(uint32_t field, uint32_t wire_type) { return field << 3 | wire_type; }

bool count_packed(Wire& wire, Kind kind, Range run, int64_t& count) {
  if (kind == kFloat) {
    if (run.size() % 4 != 0) return wire.fail("bad_packed", run.begin, 4, run.size());
    count += run.size() / 4;
    return true;
  }
  const int64_t found = count_varints(run.begin, run.size());
  if (found >= 0) {
    count += found;
    return true;
  }
  uint64_t ignored;
  for (const uint8_t* p = run.begin; wire.varint(p, run.end, ignored);) {
  }
  return false;  // that loop has recorded where
}

// Walks a list message and adds what it holds. `whole` becomes its packed run, or its one value of bytes, where the list
// is nothing but that.
bool walk_list(Wire& wire, Piece piece, Slot& slot, Range& whole) {
  const uint32_t single = tag_of(1, piece.kind == kFloat ? 5 : 0);  // an unpacked number
  const uint8_t* p = piece.list.begin;
  const uint8_t* const end = piece.list.end;
  while (p < end) {
    const uint8_t* at = p;
    uint32_t tag;
    if (!wire.tag(p, end, tag)) return false;
    if (tag != tag_of(1, 2)) {
      if (!wire.skip(p, end, tag, at)) return false;
      slot.count += piece.kind != kBytes && tag == single;
      continue;
    }
    Range content;
    if (!wire.bytes(p, end, content)) return false;
    if (piece.kind == kBytes) {
      ++slot.count;
      slot.num_bytes += content.size();
    } else if (!count_packed(wire, piece.kind, content, slot.count)) {
      return false;
    }
    if (at == piece.list.begin && p == end) whole = content;
  }
  return true;
}

// Splits a map entry into its name (the last one counts) and the messages of its value (which merge).
bool split_entry(Wire& wire, Range entry, Range& name, std::vector<Range>& values) {
  name = {entry.begin, entry.begin};
  values.clear();
  const uint8_t* p = entry.begin;
  while (p < entry.end) {
    const uint8_t* at = p;
    uint32_t tag;
    Range range;
    if (!wire.tag(p, entry.end, tag)) return false;
    if (tag == tag_of(1, 2)) {
      if (!wire.bytes(p, entry.end, name)) return false;
    } else if (tag == tag_of(2, 2)) {
      if (!wire.bytes(p, entry.end, range)) return false;
      values.push_back(range);
    } else if (!wire.skip(p, entry.end, tag, at)) {
      return false;
    }
  }
  return true;
}

// Merges the messages of one Feature into `slot`: another kind replaces, the same kind goes on. All are checked.
bool walk_feature(Wire& wire, Range entry, const std::vector<Range>& values, std::vector<Piece>& pieces, Slot& slot) {
  pieces.clear();
  Range whole;  // the packed run or the value that is all there is
  for (const Range& value : values) {
    const uint8_t* p = value.begin;
    while (p < value.end) {
      const uint8_t* at = p;
      uint32_t tag;
      if (!wire.tag(p, value.end, tag)) return false;
      if ((tag & 7) != 2 || tag >> 3 > 3) {
        if (!wire.skip(p, value.end, tag, at)) return false;
        continue;
      }
      Piece piece{static_cast<Kind>(tag >> 3), {}};
      if (!wire.bytes(p, value.end, piece.list)) return false;
      if (piece.kind != slot.kind) {
        pieces.clear();
        slot.kind = piece.kind;
        slot.count = slot.num_bytes = 0;
      }
      pieces.push_back(piece);
      whole = {};
      if (!walk_list(wire, piece, slot, whole)) return false;
    }
  }
  if (pieces.size() != 1) {
    slot.data = entry;
    slot.form = Form::kEntry;
  } else if (whole.begin != nullptr) {
    slot.data = whole;
    slot.form = Form::kPacked;
  } else {
    slot.data = pieces[0].list;
    slot.form = Form::kList;
  }
  return true;
}

// Calls visit(wire, bytes) for each value, or packed run of values, of a slot of form kList or kEntry. `single` is the tag
// of one value; tag_of(1, 2) is that of a packed run, or of a bytes value. Everything was checked by the walk.
template <class Visit>
void for_each_value(const Slot& slot, uint32_t single, Visit visit) {
  Fault none;
  Wire wire(slot.data.begin, none);
  std::vector<Piece> pieces{{slot.kind, slot.data}};
  if (slot.form == Form::kEntry) {
    Range name;
    std::vector<Range> values;
    Slot again;
    if (!split_entry(wire, slot.data, name, values) || !walk_feature(wire, slot.data, values, pieces, again)) return;
  }
  for (const Piece& piece : pieces) {
    const uint8_t* p = piece.list.begin;
    while (p < piece.list.end) {
      const uint8_t* at = p;
      uint32_t tag;
      if (!wire.tag(p, piece.list.end, tag)) return;
      Range content{p, p};
      if (tag == tag_of(1, 2)) {
        if (!wire.bytes(p, piece.list.end, content)) return;
      } else {
        if (!wire.skip(p, piece.list.end, tag, at)) return;
        if (tag != single) continue;
        content.end = p;
      }
      visit(wire, content);
    }
  }
}

}  // namespace

// A Feature of one packed list or of one bytes value, all lengths below 128: what most writers make of short features.
// Fills the slot and returns true; or false, where the general walk has to look.
//
//   q: tag L1 0a L2 values[L2]        with L1 = L2 + 2, the Feature being L2 + 4 bytes long
inline bool plain_feature(const uint8_t* q, int64_t feature_size, Slot& slot) {
  const uint32_t word = load32(q);
  const auto size = static_cast<uint32_t>(feature_size);
  // The three bytes after the tag, compared at once. Nothing is borrowed between them, since size is 4 to 127.
  const uint32_t expected = size * 0x01000100u + 0x000A0000u - 0x04000200u;
  if (size < 4 || (word & 0xFFFFFF00u) != expected) return false;
  const int64_t num_bytes = feature_size - 4;
  slot.data = {q + 4, q + 4 + num_bytes};
  switch (word & 0xFF) {
    case tag_of(kInt64, 2):
      if (num_bytes >= 1 && num_bytes <= 10 && is_one_varint(q + 4, num_bytes)) {
        slot.count = 1;
        slot.mark(kInt64, kInt64);
        return true;
      }
      slot.count = count_varints(q + 4, num_bytes);
      if (slot.count < 0) return false;
      slot.mark(kInt64, slot.count == 1 ? kInt64 : kNone);  // a zero may take any number of bytes
      return true;
    case tag_of(kFloat, 2):
      if (num_bytes == 4) {
        slot.count = 1;
        slot.mark(kFloat, kFloat);
        return true;
      }
      if (num_bytes % 4 != 0) return false;
      slot.count = num_bytes / 4;
      slot.mark(kFloat, kNone);
      return true;
    case tag_of(kBytes, 2):
      slot.count = 1;
      slot.num_bytes = num_bytes;
      slot.mark(kBytes, kNone);
      return true;
    default:
      return false;
  }
}

inline int32_t ExampleWalker::find(const uint8_t* name, int64_t size) {
  int32_t& guess = next_[static_cast<size_t>(last_ + 1)];
  if (guess == Names::kUnwanted || !names_.is(guess, name, size)) {
    const int32_t found = names_.find(name, size);
    if (found == Names::kUnwanted) return found;
    guess = found;
  }
  return last_ = guess;
}

bool ExampleWalker::wanted(Wire& wire, int32_t index, Range entry) {
  Slot& slot = slots_[index];
  *duplicates_ += slot.seen;
  slot = Slot{};
  slot.seen = true;
  if (walk_feature(wire, entry, values_, pieces_, slot)) return true;
  damaged_ = index;
  return false;
}

// An entry of a name and then a value, all lengths below 128. Moves `next` to the field after it, or leaves it where
// anything is out of the ordinary.
//
//   p: 0a L1 0a K name[K]   q: 12 L2 value[L2]
inline bool ExampleWalker::plain_entry(Wire& wire, const uint8_t*& next, const uint8_t* end) {
  const uint8_t* p = next;
  const uint32_t word = load32(p);
  const int64_t entry_size = word >> 8 & 0xFF, name_size = word >> 24;
  const int64_t value_size = entry_size - 4 - name_size;
  if ((word & 0x00FF00FFu) != 0x000A000Au || entry_size >= 0x80 || value_size < 0 || end - p < entry_size + 2) return true;
  const uint8_t* q = p + 4 + name_size;
  if (q[0] != 0x12 || q[1] != value_size) return true;
  next = q + 2 + value_size;
  const int32_t index = find(p + 4, name_size);
  if (index == Names::kUnwanted) return true;
  Slot& slot = slots_[index];
  if (!slot.seen && plain_feature(q + 2, value_size, slot)) return true;
  values_.assign(1, {q + 2, next});
  return wanted(wire, index, {p + 2, next});
}

bool ExampleWalker::entry(Wire& wire, Range message) {
  Range name;
  if (!split_entry(wire, message, name, values_)) return false;
  const int32_t index = find(name.begin, name.size());
  return index == Names::kUnwanted || wanted(wire, index, message);
}

bool ExampleWalker::features(Wire& wire, Range message) {
  const uint8_t* p = message.begin;
  while (p < message.end) {
    const uint8_t* at = p;
    if (!plain_entry(wire, p, message.end)) return false;
    if (p != at) continue;
    uint32_t tag;
    Range range;
    if (!wire.tag(p, message.end, tag)) return false;
    if (tag == tag_of(1, 2)) {
      if (!wire.bytes(p, message.end, range) || !entry(wire, range)) return false;
    } else if (!wire.skip(p, message.end, tag, at)) {
      return false;
    }
  }
  return true;
}

bool ExampleWalker::walk(Range record, Slot* slots, int64_t& duplicates, Fault& fault) {
  std::fill_n(slots, names_.size(), Slot{});
  slots_ = slots;
  duplicates_ = &duplicates;
  damaged_ = Names::kUnwanted;
  last_ = Names::kUnwanted;
  Wire wire(record.begin, fault);
  const uint8_t* p = record.begin;
  while (p < record.end) {
    const uint8_t* at = p;
    uint32_t tag;
    Range message;
    const bool good = wire.tag(p, record.end, tag) &&
                      (tag == tag_of(1, 2) ? wire.bytes(p, record.end, message) && features(wire, message)
                                           : wire.skip(p, record.end, tag, at));
    if (!good) {
      fault.column = damaged_;
      return false;
    }
  }
  return true;
}

bool describe_example(Range record, std::vector<Described>& features, Fault& fault) {
  Wire wire(record.begin, fault);
  std::vector<Range> values;
  std::vector<Piece> pieces;
  Names names;  // collects the names themselves: slot i is features[i]
  for (const uint8_t* p = record.begin; p < record.end;) {
    const uint8_t* at = p;
    uint32_t tag;
    Range message;
    if (!wire.tag(p, record.end, tag)) return false;
    if (tag != tag_of(1, 2)) {
      if (!wire.skip(p, record.end, tag, at)) return false;
      continue;
    }
    if (!wire.bytes(p, record.end, message)) return false;
    for (const uint8_t* q = message.begin; q < message.end;) {
      const uint8_t* field = q;
      Range entry, name;
      if (!wire.tag(q, message.end, tag)) return false;
      if (tag != tag_of(1, 2)) {
        if (!wire.skip(q, message.end, tag, field)) return false;
        continue;
      }
      Slot slot;
      if (!wire.bytes(q, message.end, entry) || !split_entry(wire, entry, name, values) ||
          !walk_feature(wire, entry, values, pieces, slot)) {
        return false;
      }
      const auto index = static_cast<size_t>(
          names.add(std::string(reinterpret_cast<const char*>(name.begin), static_cast<size_t>(name.size()))));
      if (index == features.size()) features.push_back({name, kNone, 0});
      features[index].kind = slot.kind;
      features[index].count = slot.count;
    }
  }
  return true;
}

void copy_int64s(const Slot& slot, int64_t* out) {
  if (slot.form == Form::kPacked) {
    if (slot.count == 1) {
      *out = static_cast<int64_t>(decode_varint(slot.data.begin, slot.data.size()));
    } else {
      decode_varints(slot.data.begin, slot.data.size(), slot.count, out);
    }
    return;
  }
  for_each_value(slot, tag_of(1, 0), [&out](Wire& wire, Range run) {
    uint64_t value;
    for (const uint8_t* p = run.begin; p < run.end && wire.varint(p, run.end, value);) {
      *out++ = static_cast<int64_t>(value);
    }
  });
}

void copy_floats(const Slot& slot, uint8_t* out) {
  const auto copy = [&out](Wire&, Range run) {
    if (run.size() > 0) std::memcpy(out, run.begin, static_cast<size_t>(run.size()));
    out += run.size();
  };
  if (slot.form != Form::kPacked) return for_each_value(slot, tag_of(1, 5), copy);
  if (slot.data.size() > 0) std::memcpy(out, slot.data.begin, static_cast<size_t>(slot.data.size()));
}

void list_bytes(const Slot& slot, std::vector<Range>& values) {
  values.clear();
  if (slot.form == Form::kPacked) {
    values.push_back(slot.data);
    return;
  }
  for_each_value(slot, tag_of(1, 2), [&values](Wire&, Range value) { values.push_back(value); });
}

}  // namespace tfr
