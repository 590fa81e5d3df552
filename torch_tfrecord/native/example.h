// Walks a serialised Example and says where the values of each wanted feature lie. Nothing is copied.
#pragma once

#include <cstdint>
#include <vector>

#include "fault.h"
#include "names.h"
#include "wire.h"

namespace tfr {

enum Kind : uint8_t { kNone = 0, kBytes = 1, kFloat = 2, kInt64 = 3 };  // Feature's field numbers

// How a slot's `data` is to be read.
enum class Form : uint8_t {
  kPacked,   // numbers: the one packed run; bytes: the one value
  kList,     // one list message
  kEntry,    // a whole map entry, several of whose messages merge
};

// What was found of one wanted feature in one record.
struct Slot {
  Range data;
  int64_t count = 0;      // values
  int64_t num_bytes = 0;  // kBytes: of all values together
  Kind kind = kNone;      // kNone: absent, or present without a kind
  Kind scalar = kNone;    // the kind again, where the feature is one packed number
  Form form = Form::kPacked;
  bool seen = false;

  // Four bytes at once: found in the plain form.
  void mark(Kind found, Kind one_number) {
    kind = found;
    scalar = one_number;
    form = Form::kPacked;
    seen = true;
  }
};

// One field of a Feature: its kind and its list message.
struct Piece {
  Kind kind;
  Range list;
};

// Walks records one after another; not for several threads at once.
class ExampleWalker {
 public:
  explicit ExampleWalker(const Names& names)
      : names_(names), next_(static_cast<size_t>(names.size()) + 1, Names::kUnwanted) {}

  // Fills slots[0 .. names.size()) from one record, which has kSlack readable bytes after it. On a fault returns false;
  // fault.column then holds the slot whose feature is damaged, or -1. Adds to `duplicates` each entry of a wanted name
  // that a later entry replaced.
  bool walk(Range record, Slot* slots, int64_t& duplicates, Fault& fault);

 private:
  int32_t find(const uint8_t* name, int64_t size);
  bool features(Wire& wire, Range message);
  bool plain_entry(Wire& wire, const uint8_t*& next, const uint8_t* end);
  bool entry(Wire& wire, Range message);
  bool wanted(Wire& wire, int32_t index, Range entry);

  const Names& names_;
  // Most files keep one order of names. next_[slot + 1] is the wanted name that came after that of `slot` last time
  // (next_[0]: first in the record): it is tried before the name is hashed. Where orders are random that costs little.
  std::vector<int32_t> next_;
  int32_t last_ = Names::kUnwanted;
  std::vector<Range> values_;
  std::vector<Piece> pieces_;
  Slot* slots_ = nullptr;
  int64_t* duplicates_ = nullptr;
  int32_t damaged_ = Names::kUnwanted;
};

// One feature of an Example, for looking at records whose schema is not known.
struct Described {
  Range name;
  Kind kind;
  int64_t count;
};

// All features in the order in which their names first occur. Checks everything inside.
bool describe_example(Range record, std::vector<Described>& features, Fault& fault);

// Writes a slot's values, which the walk has checked.
void copy_int64s(const Slot& slot, int64_t* out);
void copy_floats(const Slot& slot, uint8_t* out);
// The ranges of a slot's bytes values.
void list_bytes(const Slot& slot, std::vector<Range>& values);

}  // namespace tfr
