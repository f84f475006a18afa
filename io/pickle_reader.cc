#include "io/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "io/quote.h"

namespace weft::io {
namespace {

using Kind = PickleNode::Kind;

constexpr unsigned char kStop = '.';
constexpr std::string_view kOrderedDict = "collections.OrderedDict";

// Every opcode of Python 3's pickletools with its name, for messages.
constexpr std::string_view kOpcodes =
    " (:MARK .:STOP 0:POP 1:POP_MARK 2:DUP F:FLOAT I:INT J:BININT K:BININT1 L:LONG M:BININT2"
    " N:NONE P:PERSID Q:BINPERSID R:REDUCE S:STRING T:BINSTRING U:SHORT_BINSTRING V:UNICODE"
    " X:BINUNICODE a:APPEND b:BUILD c:GLOBAL d:DICT }:EMPTY_DICT e:APPENDS g:GET h:BINGET i:INST"
    " j:LONG_BINGET l:LIST ]:EMPTY_LIST o:OBJ p:PUT q:BINPUT r:LONG_BINPUT s:SETITEM t:TUPLE"
    " ):EMPTY_TUPLE u:SETITEMS G:BINFLOAT B:BINBYTES C:SHORT_BINBYTES \x80:PROTO \x81:NEWOBJ"
    " \x82:EXT1 \x83:EXT2 \x84:EXT4 \x85:TUPLE1 \x86:TUPLE2 \x87:TUPLE3 \x88:NEWTRUE"
    " \x89:NEWFALSE \x8a:LONG1 \x8b:LONG4 \x8c:SHORT_BINUNICODE \x8d:BINUNICODE8 \x8e:BINBYTES8"
    " \x8f:EMPTY_SET \x90:ADDITEMS \x91:FROZENSET \x92:NEWOBJ_EX \x93:STACK_GLOBAL \x94:MEMOIZE"
    " \x95:FRAME \x96:BYTEARRAY8 \x97:NEXT_BUFFER \x98:READONLY_BUFFER ";

// In the order of PickleNode::Kind.
constexpr const char* kKindNames[] = {
    "None",   "a bool", "an integer", "a float",  "a string",  "a tuple",
    "a list", "a set",  "a dict",     "a global", "a storage", "a tensor",
};

std::string opcode_name(unsigned char opcode) {
  const char word[] = {' ', static_cast<char>(opcode), ':'};
  const size_t found = kOpcodes.find(std::string_view(word, 3));
  if (found == kOpcodes.npos) return fmt::format("{:#04x}", opcode);
  const std::string_view name = kOpcodes.substr(found + 3);
  return fmt::format("{} ({:#04x})", name.substr(0, name.find(' ')), opcode);
}

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, std::span<const std::string_view> globals,
          const std::string& place, const PickleLimits& limits)
      : bytes_(bytes), globals_(globals), place_(place), limits_(limits) {}

  Pickle run() {
    check(bytes_.size() <= limits_.bytes, "{} bytes, at most {} are read", bytes_.size(),
          limits_.bytes);
    check(bytes_.size() >= 2 && take<uint8_t>() == 0x80, "does not begin with a protocol number");
    const int protocol = take<uint8_t>();
    check(protocol == 2,
          "pickle protocol {}; torch.save writes 2 unless told otherwise, and only that is read",
          protocol);
    for (unsigned char opcode; (opcode = next_opcode()) != kStop;) execute(opcode);
    check(stack_.size() == 1 && marks_.empty(), "STOP with {} values on the stack, expected one",
          stack_.size());
    check(position_ == bytes_.size(), "{} bytes follow STOP", bytes_.size() - position_);
    pickle_.root = stack_.back();
    return std::move(pickle_);
  }

 private:
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... arguments) const {
    if (condition) [[likely]]
      return;
    WEFT_FAIL("{}: offset {}: {}", place_, opcode_at_,
              fmt::format(format, std::forward<Args>(arguments)...));
  }

  const std::byte* take_bytes(uint64_t count) {
    check(count <= bytes_.size() - position_, "the pickle is cut short");
    const std::byte* first = bytes_.data() + position_;
    position_ += count;
    return first;
  }
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof value), sizeof value);
    return value;
  }
  std::string take_text(uint64_t length) {
    check(length <= limits_.text, "a string of {} bytes, at most {} are read", length,
          limits_.text);
    return {reinterpret_cast<const char*>(take_bytes(length)), length};
  }
  std::string take_line() {
    const auto* first = reinterpret_cast<const char*>(bytes_.data() + position_);
    const size_t left = std::min(bytes_.size() - position_, limits_.text);
    const void* end = left > 0 ? std::memchr(first, '\n', left) : nullptr;
    check(end != nullptr, "a name has no end within {} bytes", left);
    const std::string line(first, static_cast<const char*>(end));
    position_ += line.size() + 1;
    return line;
  }

  PickleNode& node(PickleIndex index) { return pickle_.nodes[index]; }
  PickleIndex top() const {
    check(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "the stack is empty");
    return stack_.back();
  }
  PickleIndex pop() {
    const PickleIndex index = top();
    stack_.pop_back();
    return index;
  }
  /// What was pushed since the last mark, which goes too.
  std::vector<PickleIndex> pop_to_mark() {
    check(!marks_.empty(), "no MARK on the stack");
    const auto first = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<PickleIndex> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }

  void push(Kind kind, const std::vector<PickleIndex>& items = {}) {
    check(pickle_.nodes.size() < limits_.nodes, "more than {} values", limits_.nodes);
    stack_.push_back(static_cast<PickleIndex>(pickle_.nodes.size()));
    pickle_.nodes.emplace_back().kind = kind;
    extend(stack_.back(), items);
  }
  void push_integer(Kind kind, int64_t value) {
    push(kind);
    pickle_.nodes.back().integer = value;
  }
  void push_text(Kind kind, std::string text) {
    push(kind);
    pickle_.nodes.back().text = std::move(text);
  }
  void extend(PickleIndex container, const std::vector<PickleIndex>& items) {
    int depth = node(container).depth;
    for (const PickleIndex item : items) depth = std::max(depth, node(item).depth + 1);
    check(depth <= limits_.depth, "containers are nested more than {} deep", limits_.depth);
    node(container).depth = static_cast<uint8_t>(depth);
    auto& all = node(container).items;
    all.insert(all.end(), items.begin(), items.end());
  }

  void append(const std::vector<PickleIndex>& items) {
    const PickleIndex list = top();
    check(node(list).kind == Kind::kList, "items are appended to {}", describe(node(list)));
    extend(list, items);
  }
  void set_items(const std::vector<PickleIndex>& items) {
    const PickleIndex dict = top();
    check(node(dict).kind == Kind::kDict, "items are set in {}", describe(node(dict)));
    check(items.size() % 2 == 0, "a key without a value");
    extend(dict, items);
  }

  void put(uint32_t slot) {
    check(memo_.size() < limits_.memo || memo_.count(slot), "more than {} memo entries",
          limits_.memo);
    memo_[slot] = top();
  }
  void get(uint32_t slot) {
    const auto found = memo_.find(slot);
    check(found != memo_.end(), "memo entry {} was never stored", slot);
    check(stack_.size() < limits_.nodes, "more than {} values", limits_.nodes);
    stack_.push_back(found->second);
  }

  void global() {
    const std::string module = take_line(), name = take_line();
    std::string full = module + "." + name;
    check(full == kOrderedDict || std::ranges::find(globals_, full) != globals_.end(),
          "it names {}, which a state dict does not need; nothing was executed. Save the state "
          "dict alone: torch.save(model.state_dict(), FILE)",
          quote(full));
    push_text(Kind::kGlobal, std::move(full));
  }

  void call(const char* opcode) {
    const PickleIndex arguments = pop(), callee = pop();
    check(node(callee).kind == Kind::kGlobal && node(arguments).kind == Kind::kTuple,
          "{} of {} with {}", opcode, describe(node(callee)), describe(node(arguments)));
    if (node(callee).text == kOrderedDict) {
      check(node(arguments).items.empty(), "an OrderedDict made from arguments");
      return push(Kind::kDict);
    }
    push(Kind::kCall, {callee, arguments});
  }

  unsigned char next_opcode() {
    opcode_at_ = position_;
    return take<uint8_t>();
  }

  void execute(unsigned char opcode) {
    switch (opcode) {
      case '(':
        check(static_cast<int>(marks_.size()) < limits_.depth, "more than {} marks", limits_.depth);
        return marks_.push_back(stack_.size());
      case 'N':
        return push(Kind::kNone);
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        return push_integer(Kind::kBool, opcode == 0x88);
      case 'K':
        return push_integer(Kind::kInt, take<uint8_t>());
      case 'M':
        return push_integer(Kind::kInt, take<uint16_t>());
      case 'J':
        return push_integer(Kind::kInt, take<int32_t>());
      case 0x8a:  // LONG1
        return push_integer(Kind::kInt, long_integer());
      case 'G':
        push(Kind::kFloat);
        pickle_.nodes.back().real = std::bit_cast<double>(__builtin_bswap64(take<uint64_t>()));
        return;
      case 'X':
        return push_text(Kind::kString, take_text(take<uint32_t>()));
      case 'U':
        return push_text(Kind::kString, take_text(take<uint8_t>()));
      case ')':
        return push(Kind::kTuple);
      case ']':
        return push(Kind::kList);
      case '}':
        return push(Kind::kDict);
      case 0x8f:  // EMPTY_SET
        return push(Kind::kSet);
      case 't':
        return push(Kind::kTuple, pop_to_mark());
      case 0x85:  // TUPLE1
      case 0x86:  // TUPLE2
      case 0x87:  // TUPLE3
        return push(Kind::kTuple, pop_many(opcode - 0x84));
      case 'a':
        return append({pop()});
      case 'e':
        return append(pop_to_mark());
      case 's':
        return set_items(pop_many(2));
      case 'u':
        return set_items(pop_to_mark());
      case 'q':
        return put(take<uint8_t>());
      case 'r':
        return put(take<uint32_t>());
      case 'h':
        return get(take<uint8_t>());
      case 'j':
        return get(take<uint32_t>());
      case 'c':
        return global();
      case 'R':
        return call("REDUCE");
      case 0x81:  // NEWOBJ
        return call("NEWOBJ");
      case 'b':
        return build();
      case 'Q':
        return push(Kind::kPersistent, {pop()});
      default:
        check(false, "the opcode {} is not one that a state dict needs; nothing was executed",
              opcode_name(opcode));
    }
  }

  std::vector<PickleIndex> pop_many(int count) {
    std::vector<PickleIndex> items(count);
    for (int i = count - 1; i >= 0; --i) items[i] = pop();
    return items;
  }

  int64_t long_integer() {
    const size_t count = take<uint8_t>();
    check(count <= sizeof(int64_t), "an integer of {} bytes, at most {} are read", count,
          sizeof(int64_t));
    uint64_t value = 0;
    std::memcpy(&value, take_bytes(count), count);
    const bool is_negative = count > 0 && value >> (8 * count - 1);
    if (is_negative && count < sizeof value) value |= ~uint64_t{0} << (8 * count);
    return static_cast<int64_t>(value);
  }

  /// Of an OrderedDict: attributes such as `_metadata`, which hold no tensors. They are dropped.
  void build() {
    const PickleIndex state = pop(), object = top();
    check(node(object).kind == Kind::kDict && node(state).kind == Kind::kDict,
          "BUILD of {} from {}", describe(node(object)), describe(node(state)));
  }

  const std::span<const std::byte> bytes_;
  const std::span<const std::string_view> globals_;
  const std::string& place_;
  const PickleLimits limits_;
  size_t position_ = 0, opcode_at_ = 0;
  Pickle pickle_;
  std::vector<PickleIndex> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::unordered_map<uint32_t, PickleIndex> memo_;
};

}  // namespace

Pickle read_pickle(std::span<const std::byte> bytes, std::span<const std::string_view> globals,
                   const std::string& place, const PickleLimits& limits) {
  return Machine(bytes, globals, place, limits).run();
}

std::string describe(const PickleNode& node) {
  switch (node.kind) {
    case Kind::kBool:
      return node.integer ? "True" : "False";
    case Kind::kInt:
      return fmt::format("the integer {}", node.integer);
    case Kind::kFloat:
      return fmt::format("the float {}", node.real);
    case Kind::kString:
      return "the string " + quote(node.text);
    case Kind::kGlobal:
      return node.text;
    default:
      return kKindNames[static_cast<size_t>(node.kind)];
  }
}

}  // namespace weft::io
