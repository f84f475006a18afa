#include "io/pth_reader.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "io/crafted_files.h"
#include "io/pickle_reader.h"
#include "io/zip_reader.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::io;
using namespace weft::io::crafted;
using Catch::Matchers::Contains;

namespace {

const Path kData = "io/testdata";

PthFile read_bytes(const std::string& bytes) {
  auto copy = std::make_shared<std::string>(bytes);
  const std::span<std::byte> span(reinterpret_cast<std::byte*>(copy->data()), copy->size());
  return read_pth(span, copy, "case.pth");
}

std::string message_of(const std::string& bytes) {
  try {
    read_bytes(bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Name, dtype, shape and elements, bit for bit.
std::map<std::string, std::string> contents(const NamedTensors& tensors) {
  std::map<std::string, std::string> result;
  for (const auto& [name, tensor] : tensors) {
    std::string bytes = describe(tensor) + ": ";
    for_each_offset(tensor.shape(), tensor.strides(), [&, &tensor = tensor](int64_t offset) {
      const auto* first = static_cast<const char*>(tensor.raw());
      bytes.append(first + offset * static_cast<int64_t>(tensor.itemsize()), tensor.itemsize());
    });
    result[name] = bytes;
  }
  return result;
}

std::map<std::string, std::string> expected_dtypes() {
  NamedTensors tensors;
  for (auto& [name, tensor] : read_safetensors(kData / "expected.safetensors").tensors) {
    if (name.starts_with("dtypes.")) tensors.emplace_back(name.substr(7), tensor);
  }
  REQUIRE(tensors.size() == 19);
  return contents(tensors);
}

std::string replaced(std::string bytes, size_t at, const std::string& by) {
  return bytes.replace(at, by.size(), by);
}

}  // namespace

TEST_CASE("every dtype, view and Parameter is read bit for bit, from old and new PyTorch") {
  const auto expected = expected_dtypes();
  for (const char* name : {"dtypes.pth", "dtypes_1_13.pth"}) {
    INFO(name);
    const PthFile file = read_pth(kData / name);
    CHECK(contents(file.tensors) == expected);
    CHECK(file.tensors.front().first == "f64");  // the dict's order
    CHECK(file.wrapper.empty());
    std::map<std::string, Tensor> by_name(file.tensors.begin(), file.tensors.end());
    // Views share their base's storage and keep their strides.
    for (const char* view : {"row", "column", "transposed", "every_other", "expanded"}) {
      CHECK(by_name[view].storage() == by_name["f32"].storage());
    }
    CHECK(by_name["transposed"].strides() == Shape{1, 6});
    CHECK(by_name["every_other"].strides() == Shape{6, 2});
    CHECK(by_name["expanded"].strides() == Shape{0, 1});
    CHECK(by_name["i8"].dtype() == DType::i32);
    CHECK(by_name["parameter"].storage() != by_name["f32"].storage());
  }
}

TEST_CASE("a state dict under a key is found and the other keys are named") {
  const PthFile file = read_pth(kData / "wrapped.pth");
  CHECK(file.wrapper == "state_dict");
  CHECK(file.others == std::vector<std::string>{"epoch", "optimizer"});
  const auto plain = contents(read_pth(kData / "torchvision.pth").tensors);
  CHECK(plain.size() == 32);
  CHECK(file.tensors.size() == 32);
  for (const auto& [name, bytes] : contents(file.tensors)) {
    std::string key = name.substr(std::strlen("module."));
    for (const auto& [older, newer] : {std::pair("linear_1", "0"), std::pair("linear_2", "3")}) {
      if (const size_t at = key.find(older); at != std::string::npos) key.replace(at, 8, newer);
    }
    CHECK(plain.at(key) == bytes);
  }
}

TEST_CASE("changing a tensor that was read does not change the file") {
  const Path path = kData / "no_crc.pth";
  Tensor a = read_pth(path).tensors[0].second;  // outlives the PthFile
  CHECK(a.to_vector() == std::vector<double>{0, 1, 2});
  a.data<float>()[0] = 7;
  CHECK(read_pth(path).tensors[0].second.to_vector() == std::vector<double>{0, 1, 2});
}

TEST_CASE("what PyTorch writes besides plain state dicts is refused by name, with the way out") {
  const std::pair<const char*, const char*> cases[] = {
      {"legacy.pth",
       "written by PyTorch 1.5 or older, or with _use_new_zipfile_serialization=False; "
       "save it again with a newer one: torch.save(torch.load(OLD), NEW)"},
      {"module.pth", R"(names "torch.nn.modules.linear.Linear", which a state dict does not need)"},
      {"protocol_4.pth", "pickle protocol 4; torch.save writes 2 unless told otherwise"},
      {"uint16.pth",
       R"(tensor "weight": it is of torch.uint16, which is not read from a file of torch.save)"},
      {"sparse.pth", R"(names "torch._utils._rebuild_sparse_tensor")"},
      {"complex.pth",
       R"(tensor "weight": torch.ComplexFloatStorage is a storage of a dtype that is not read)"},
      {"not_a_tensor.pth",
       R"(tensor "epoch": the state dict holds the integer 3 under this key, expected a tensor)"},
      {"torchscript.pt", "a TorchScript program, not a state dict"},
      {"timm.safetensors", "not a file of torch.save: it does not begin as a ZIP archive"},
  };
  for (const auto& [name, message] : cases) {
    INFO(name);
    CHECK_THROWS_WITH(read_pth(kData / name), Contains(std::string(name)) && Contains(message));
  }
  CHECK_THROWS_WITH(read_pth("/nonexistent.pth"), Contains("cannot read /nonexistent.pth"));
}

TEST_CASE("every file cut at every byte is an error that names the file") {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kData)) {
    const std::string kind = entry.path().extension().string();
    if (kind != ".pth" && kind != ".pt" && kind != ".safetensors") continue;
    ++files;
    std::string whole = read_text(entry.path());
    auto* const first = reinterpret_cast<std::byte*>(whole.data());
    for (size_t length = 0; length < whole.size(); ++length) {
      const std::span<std::byte> bytes(first, length);
      std::string message = "no error";
      try {
        if (kind == ".safetensors") {
          read_safetensors(bytes, nullptr, "case");
        } else {
          read_pth(bytes, nullptr, "case");
        }
      } catch (const Error& error) {
        message = error.what();
      }
      if (message.starts_with("case: ")) continue;
      INFO(entry.path() << ", " << length << " of " << whole.size() << " bytes: " << message);
      CHECK(false);
    }
  }
  CHECK(files == 17);
}

TEST_CASE("any byte changed is an error or changes no tensor") {
  const std::string whole = read_text(kData / "dtypes.pth");
  const auto expected = expected_dtypes();
  int errors = 0, harmless = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ change);
      try {
        const PthFile file = read_bytes(bytes);
        ++harmless;  // padding, or entries that are not read
        if (contents(file.tensors) == expected) continue;
        INFO("byte " << i << " ^ " << change);
        CHECK(false);
      } catch (const Error& error) {
        ++errors;
        CHECK(std::string(error.what()).find('\n') == std::string::npos);
      }
    }
  }
  CHECK(errors > 5000);
  CHECK(harmless > 1000);
}

TEST_CASE("any field of the ZIP structures out of range is an error or changes no tensor") {
  const std::string whole = read_text(kData / "dtypes.pth");
  const auto expected = expected_dtypes();
  const size_t directory = whole.find("PK\x01\x02");
  for (size_t i = directory; i + 8 <= whole.size(); ++i) {
    for (const std::string& value : {number<uint16_t>(0xffff), number<uint32_t>(0xffffffff),
                                     number<uint32_t>(0x7fffffff), number<uint64_t>(~uint64_t{0}),
                                     number<uint64_t>(uint64_t{1} << 63), number<uint64_t>(0)}) {
      try {
        if (contents(read_bytes(replaced(whole, i, value)).tensors) == expected) continue;
        INFO("offset " << i);
        CHECK(false);
      } catch (const Error&) {
      }
    }
  }
}

TEST_CASE("archives that could be read in two ways, or expand, are refused") {
  const std::string data = pickle("}");
  const Entry plain = {"x/data.pkl", data};
  const auto with = [&](auto change) {
    Entry entry = plain;
    change(entry);
    return zip({entry});
  };
  CHECK(read_bytes(zip({plain})).tensors.empty());
  const std::string whole = zip({plain});
  const size_t end = whole.size() - 22, directory = whole.find("PK\x01\x02");
  const std::pair<std::string, const char*> cases[] = {
      {whole + "x", "no ZIP end record in the last 22 bytes"},
      {"x" + whole, "does not begin as a ZIP archive"},
      {replaced(whole, end + 20, number<uint16_t>(1)), "no ZIP end record"},
      {replaced(whole, end + 4, number<uint16_t>(1)), "one of several volumes"},
      {replaced(whole, end + 8, number<uint16_t>(2)), "one of several volumes"},
      {replaced(whole, end + 8, number<uint32_t>(0x00020002)), "cannot hold 2 entries"},
      {replaced(whole, end + 8, number<uint32_t>(0)), "56 bytes follow the last entry"},
      {replaced(whole, end + 12, number<uint32_t>(55)), "does not end at"},
      {replaced(whole, end + 16, number<uint32_t>(0xffffffff)), "at offset 4294967295"},
      {replaced(whole, directory, "PKxx"), "no ZIP directory entry at offset"},
      {replaced(whole, directory + 28, number<uint16_t>(500)), "longer than the directory"},
      {replaced(whole, directory + 16, number<uint32_t>(7)), "disagrees with the directory"},
      {replaced(whole, 26, number<uint16_t>(65000)), "disagrees with the directory"},
      {replaced(whole, 30, "y"), "disagrees with the directory"},
      {with([](Entry& e) { e.method = 8; }),
       R"(entry "x/data.pkl" is compressed (method 8); only stored entries are read)"},
      {with([](Entry& e) { e.flags = 1; }), "is encrypted"},
      {with([](Entry& e) { e.flags = 1 << 13; }), "unknown flags 0x2000"},
      {with([](Entry& e) { e.extra_size = 1; }), "reaches into the directory"},
      {with([](Entry& e) { e.extra_offset = 1; }), "no local header at offset 1"},
      {with([](Entry& e) { e.extra_offset = 1 << 30; }), "no local header at offset 1073741824"},
      {with([](Entry& e) { e.name = "x/other.pkl"; }), "without an entry NAME/data.pkl"},
      {zip({plain, plain}), R"(entry "x/data.pkl" stands in the archive twice)"},
      {zip({plain, {"y/data.pkl", data}}), "two pickles in the archive"},
      {zip({}), "does not begin as a ZIP archive"},
      {zip({plain, {"x/byteorder", "big"}}), R"(byte order "big", only "little" is read)"},
      {zip({plain, {"x/constants.pkl", ""}}), "a TorchScript program"},
  };
  for (const auto& [bytes, message] : cases) {
    INFO(message);
    CHECK_THAT(message_of(bytes), Contains("case.pth: ") && Contains(message));
  }

  // Two names for the same bytes: a bomb needs no compression where entries may overlap.
  std::string twice = zip({{"x/data.pkl", data}, {"x/data/0", data}});
  const size_t second = twice.rfind("PK\x01\x02");
  twice = replaced(twice, second + 42, number<uint32_t>(0));
  CHECK_THAT(message_of(twice), Contains("disagrees with the directory"));
  const std::string inner = zip({{"x/data/0", "abc"}}).substr(0, 30 + 8 + 3);
  std::string nested = zip({{"x/data.pkl", inner}, {"x/data/0", "abc"}});
  nested = replaced(nested, nested.rfind("PK\x01\x02") + 42, number<uint32_t>(30 + 10));
  CHECK_THAT(message_of(nested), Contains(R"(entry "x/data.pkl" ends at offset)") &&
                                     Contains(R"(and overlaps "x/data/0")"));
}

TEST_CASE("ZIP64 records are checked against each other") {
  const std::string whole = read_text(kData / "no_crc.pth");
  const size_t record = whole.rfind("PK\x06\x06"), locator = whole.rfind("PK\x06\x07");
  REQUIRE(record != std::string::npos);
  REQUIRE(locator == record + 56);
  const std::pair<std::string, const char*> cases[] = {
      {replaced(whole, locator + 8, number<uint64_t>(record - 1)), "does not point at the record"},
      {replaced(whole, locator + 8, number<uint64_t>(~uint64_t{0})),
       "does not point at the record"},
      {replaced(whole, record, "PKxx"), "no ZIP64 end record at offset"},
      {replaced(whole, record + 4, number<uint64_t>(~uint64_t{0})), "no ZIP64 end record"},
      {replaced(whole, record + 32, number<uint64_t>(uint64_t{1} << 60)), "several volumes"},
      {replaced(whole, record + 40, number<uint64_t>(~uint64_t{0})),
       "disagrees with the ZIP64 one"},
      {replaced(whole, record + 48, number<uint64_t>(7)), "disagrees with the ZIP64 one"},
      {replaced(replaced(whole, record + 48, number<uint64_t>(~uint64_t{0} - 3)), locator + 36,
                number<uint32_t>(0xffffffff)),
       "does not end at"},
  };
  for (const auto& [bytes, message] : cases) {
    INFO(message);
    CHECK_THAT(message_of(bytes), Contains("case.pth: ") && Contains(message));
  }
}

TEST_CASE("a pickle that wants to run something is refused, and nothing runs") {
  const std::string mark = "/tmp/weft_pickle_ran_" + std::to_string(::getpid());
  const std::string command = "(" + text("touch " + mark) + "t";
  const std::pair<std::string, const char*> cases[] = {
      {"cos\nsystem\n" + command + "R", R"(offset 2: it names "os.system", which a state dict)"},
      {"cposix\nsystem\n" + command + "R", R"("posix.system")"},
      {"c__builtin__\neval\n" + command + "R", R"("__builtin__.eval")"},
      {"cbuiltins\nexec\n" + command + "R", R"("builtins.exec")"},
      {"ctorch\nload\n" + command + "R", R"("torch.load")"},
      {"ctorch.hub\nload\n" + command + "R", R"("torch.hub.load")"},
      {"ccollections\nOrderedDict.x\n)R", R"("collections.OrderedDict.x")"},
      {"(ios\nsystem\n", "the opcode INST (0x69) is not one that a state dict needs"},
      {text("os") + text("system") + "\x93", "STACK_GLOBAL (0x93)"},
      {"\x82\x01", "EXT1 (0x82)"},
      {"(o", "OBJ (0x6f)"},
      {"Pos\n", "PERSID (0x50)"},
      {"}" + text("k") + "0", "POP (0x30)"},
      {"\xfe", "the opcode 0xfe"},
      {"ctorch\nFloatStorage\n" + command + "R", "REDUCE"},
  };
  for (const auto& [code, message] : cases) {
    INFO(message);
    const std::string found = message_of(pth(pickle(code)));
    if (std::string(message) == "REDUCE") {
      // A storage class may be named; a call of it is no state dict.
      CHECK_THAT(found, Contains("holds a tensor, not a state dict"));
    } else {
      CHECK_THAT(found, Contains("case.pth: data.pkl: ") && Contains(message));
    }
  }
  CHECK_FALSE(std::filesystem::exists(mark));
}

TEST_CASE("pickles that break the machine's rules are refused with their offset") {
  std::string deep, marks;
  for (int i = 0; i < 65; ++i) deep += "\x85", marks += "(";
  std::string many_nodes;
  for (int i = 0; i <= 1 << 20; ++i) many_nodes += "N";
  const std::pair<std::string, const char*> cases[] = {
      {"", "offset 0: does not begin with a protocol number"},
      {"\x80", "does not begin with a protocol number"},
      {"}.", "does not begin with a protocol number"},
      {"\x80\x02", "offset 2: the pickle is cut short"},
      {pickle(""), "STOP with 0 values on the stack"},
      {pickle("}}"), "STOP with 2 values on the stack"},
      {pickle("(}"), "STOP with 1 values on the stack"},
      {pickle("}") + "N", "1 bytes follow STOP"},
      {pickle("t"), "no MARK on the stack"},
      {pickle("\x85"), "the stack is empty"},
      {pickle("}(s"), "the stack is empty"},
      {pickle("NN\x87"), "the stack is empty"},
      {pickle("NNNs"), "items are set in None"},
      {pickle("N(u"), "items are set in None"},
      {pickle("}(Nu"), "a key without a value"},
      {pickle("}Na"), "items are appended to a dict"},
      {pickle("h\x05"), "memo entry 5 was never stored"},
      {pickle("j" + number<uint32_t>(0xffffffff)), "memo entry 4294967295 was never stored"},
      {pickle("q\x01"), "the stack is empty"},
      {pickle("NNR"), "REDUCE of None with None"},
      {pickle("ccollections\nOrderedDict\nN\x85R"), "an OrderedDict made from arguments"},
      {pickle("]}b"), "BUILD of a list from a dict"},
      {pickle("\x8a\x09"), "an integer of 9 bytes, at most 8 are read"},
      {pickle("X" + number<uint32_t>(0xffffffff)), "a string of 4294967295 bytes, at most 65536"},
      {pickle("X" + number<uint32_t>(100)), "offset 2: the pickle is cut short"},
      {pickle("G123"), "the pickle is cut short"},
      {pickle("ctorch"), "a name has no end within"},
      {pickle("ctorch\nFloatSt"), "a name has no end within"},
      {pickle(")" + deep), "containers are nested more than 64 deep"},
      {pickle(marks), "more than 64 marks"},
      {pickle("(" + many_nodes + "t"), "more than 1048576 values"},
  };
  for (const auto& [data, message] : cases) {
    INFO(message);
    CHECK_THAT(message_of(pth(data)), Contains("case.pth: data.pkl: offset ") && Contains(message));
  }
  const std::string index = "r" + number<uint32_t>(0xffffffff);
  CHECK(read_bytes(pth(pickle("}" + index))).tensors.empty());  // costs one entry, not 2^32
}

TEST_CASE("pickles within the limits take memory in proportion to their bytes") {
  // A tuple that stands in a call costs as little the thousandth time as the first.
  std::string code = "(";
  for (int i = 0; i < 1000; ++i) code += "N";
  code +=
      "tq\x01"
      "]";
  for (int i = 0; i < 1000; ++i) code += "ctorch\nFloatStorage\nh\x01Ra";
  const std::string data = "\x80\x02" + code + "\x86.";
  const std::string_view globals[] = {"torch.FloatStorage"};
  const auto bytes = std::as_bytes(std::span(data));
  const Pickle pickle = read_pickle(bytes, globals, "p");
  size_t items = 0;
  for (const PickleNode& node : pickle.nodes) items += node.items.size();
  CHECK(items < data.size());
  CHECK_THROWS_WITH(read_pickle(bytes, globals, "p", {.nodes = 100}),
                    Contains("more than 100 values"));
  CHECK_THROWS_WITH(read_pickle(bytes, globals, "p", {.bytes = 100}),
                    Contains("bytes, at most 100 are read"));
  CHECK_THROWS_WITH(read_pickle(bytes, globals, "p", {.memo = 0}),
                    Contains("more than 0 memo entries"));
}

TEST_CASE("values of a pickle are read as Python writes them") {
  const auto read = [](const std::string& code) {
    const std::string data = pickle(code);
    const Pickle p = read_pickle(std::as_bytes(std::span(data)), {}, "p");
    return p[p.root];
  };
  CHECK(read("K\xff").integer == 255);
  CHECK(read("M\x01\x02").integer == 513);
  CHECK(read("J\xfe\xff\xff\xff").integer == -2);
  CHECK(read(std::string("\x8a\x00", 2)).integer == 0);
  CHECK(read("\x8a\x01\xff").integer == -1);
  CHECK(read(std::string("\x8a\x02\xff\x00", 4)).integer == 255);
  CHECK(read(integer(INT64_MIN)).integer == INT64_MIN);
  CHECK(read(std::string("G\x3f\xf8\0\0\0\0\0\0", 9)).real == 1.5);
  CHECK(read("U\x02hi").text == "hi");
  CHECK(read("\x88").integer == 1);
  CHECK(read("\x8f").kind == PickleNode::Kind::kSet);
  CHECK(read("]q\x01h\x01"
             "a")
            .kind == PickleNode::Kind::kList);  // a list that holds itself
}

TEST_CASE("tensors that reach beyond their storage are refused") {
  constexpr int64_t kHuge = INT64_MAX;
  struct Case {
    int64_t offset;
    std::vector<int64_t> sizes, strides;
    const char* message;  // null: it is read
  };
  const Case cases[] = {
      {0, {4}, {1}, nullptr},
      {0, {2, 2}, {2, 1}, nullptr},
      {3, {}, {}, nullptr},
      {0, {5, 4}, {0, 1}, nullptr},
      {4, {0}, {1}, nullptr},
      {0, {0, 4}, {4, 1}, nullptr},
      {0, {1, 4}, {kHuge, 1}, nullptr},  // the stride of a single row is never taken
      {0, {5}, {1}, "reach beyond a storage of 4 elements"},
      {1, {4}, {1}, "reach beyond"},
      {4, {}, {}, "reach beyond"},
      {5, {0}, {1}, nullptr},
      {kHuge, {}, {}, "reach beyond"},
      {0, {2}, {4}, "reach beyond"},
      {0, {2, 2}, {3, 1}, "reach beyond"},
      {0, {3}, {kHuge}, "reach beyond"},
      {0, {3, 2}, {kHuge, 1}, "reach beyond"},
      {kHuge, {2}, {1}, "reach beyond"},
      {0, {3, 3}, {kHuge / 2, kHuge / 2}, "reach beyond"},
      {0, {kHuge}, {0}, "is too large"},
      {0, {kHuge, kHuge}, {0, 0}, "is too large"},
      {0, {0, kHuge, 4}, {0, 0, 0}, "is too large"},
      {0, {int64_t{1} << 59}, {0}, "with this one the tensors would hold"},
      {0, {1 << 20, 1 << 10}, {0, 0}, "with this one the tensors would hold 4294967296 bytes"},
      {-1, {4}, {1}, "its offset is the integer -1"},
      {0, {-4}, {1}, "its shape is the integer -4"},
      {0, {4}, {-1}, "its stride is the integer -1"},
      {0, {4}, {}, "differ in length"},
      {0, {4}, {1, 1}, "differ in length"},
      {0,
       {1, 1, 1, 1, 1, 1, 1, 1, 1},
       {1, 1, 1, 1, 1, 1, 1, 1, 1},
       "9 dimensions, 8 is Weft's most"},
  };
  for (const Case& test : cases) {
    INFO("offset " << test.offset << " sizes " << Catch::Detail::stringify(test.sizes)
                   << " strides " << Catch::Detail::stringify(test.strides));
    const std::string bytes = four_floats(test.offset, test.sizes, test.strides);
    if (test.message) {
      CHECK_THAT(message_of(bytes), Contains("case.pth: tensor \"w\": ") && Contains(test.message));
    } else {
      const Tensor w = read_bytes(bytes).tensors.at(0).second;
      CHECK(w.to_vector() == std::vector<double>(w.numel(), w.numel() ? w.to_vector()[0] : 0));
    }
  }
}

TEST_CASE("state dicts and storages that are not as torch.save writes them are refused") {
  const std::string four = std::string(16, 'f'), s = storage("FloatStorage", "0", 4);
  const std::string good = tensor(s, 0, {4}, {1});
  const auto parameter = [](const std::string& data) {
    return "ctorch._utils\n_rebuild_parameter\n(" + data + "\x88}tR";
  };
  const auto refused = [&](const std::string& value) {
    return message_of(pth(pickle(dict({{"w", value}})), {four}));
  };
  CHECK(
      read_bytes(pth(pickle(dict({{"w", good}, {"p", parameter(good)}})), {four})).tensors.size() ==
      2);
  CHECK(
      read_bytes(pth(pickle(dict({{"w", tensor(s, 0, {4}, {1}, "N")}})), {four})).tensors.size() ==
      1);
  const std::pair<std::string, const char*> cases[] = {
      {refused("N"), R"(holds None under this key)"},
      {refused(text("x")), R"(holds the string "x" under this key)"},
      {refused(dict({{"v", good}})), R"(state dicts are looked for under "state_dict")"},
      {refused(s), "holds a storage under this key"},
      {refused(tensor("N", 0, {4}, {1})), "None instead of a storage"},
      {refused(tensor(s, 0, {4}, {1}, dict({{"neg", "\x88"}}))), "it has metadata, a dict"},
      {refused(tensor(s, 0, {4}, {1}, "NN")), "with 8 arguments, expected 6 or 7"},
      {refused("ctorch._utils\n_rebuild_tensor_v2\n)R"), "with 0 arguments"},
      {refused(parameter("N")), "a Parameter that is not made from a tensor"},
      {refused(parameter(parameter(good))), "a Parameter that is not made from a tensor"},
      {refused("ctorch._utils\n_rebuild_parameter\n)R"), "a Parameter that is not made"},
      {refused("ctorch\nFloatStorage\n)R"), "torch.FloatStorage is called, which makes no tensor"},
      {refused(tensor("(NtQ", 0, {4}, {1})), "its storage is not named as torch.save does"},
      {refused(tensor("NQ", 0, {4}, {1})), "its storage is not named"},
      {refused(tensor("(" + text("storage") + "ctorch._utils\n_rebuild_parameter\n" + text("0") +
                          text("cpu") + integer(4) + "tQ",
                      0, {4}, {1})),
       "torch._utils._rebuild_parameter is no storage"},
      {refused(tensor(storage("FloatStorage", "7", 4), 0, {4}, {1})),
       R"(the archive has no entry "x/data/7")"},
      {refused(tensor(storage("FloatStorage", "../data.pkl", 4), 0, {4}, {1})),
       R"(the archive has no entry "x/data/../data.pkl")"},
      {refused(tensor(storage("FloatStorage", "0", 5), 0, {4}, {1})),
       R"(entry "x/data/0" holds 16 bytes, not the 5 * 4 of 5 elements)"},
      {refused(tensor(storage("FloatStorage", "0", (int64_t{1} << 62) + 4), 0, {4}, {1})),
       R"(holds 16 bytes, not the)"},
      {refused(tensor(storage("FloatStorage", "0", -4), 0, {4}, {1})), "number of elements"},
      {refused(tensor(storage("BoolStorage", "0", 16), 0, {4}, {1})),
       "is of bools but holds the byte 102 at index 0"},
      {message_of(pth(pickle(dict({{"w", good}, {"w", good}})), {four})),
       R"(tensor "w": stands in the state dict twice)"},
      {message_of(pth(
           pickle(dict({{"a", good}, {"b", tensor(storage("IntStorage", "0", 4), 0, {4}, {1})}})),
           {four})),
       R"(tensor "b": storage "0" is a torch.IntStorage of 4 elements here and a torch.FloatStorage of 4 elsewhere)"},
      {message_of(pth(pickle("]"))), "holds a list, not a state dict"},
      {message_of(pth(pickle("}(" + integer(3) + good + "u"), {four})),
       "the state dict has the key the integer 3, expected a string"},
  };
  for (const auto& [found, message] : cases) {
    INFO(message);
    CHECK_THAT(found, Contains("case.pth: ") && Contains(message));
  }
}

TEST_CASE("storages at addresses unfit for their dtype are copied") {
  std::string doubles(16, '\0');
  const double values[] = {1.5, -2};
  std::memcpy(doubles.data(), values, 16);
  for (const char* pad : {"", "a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg"}) {
    const std::string data = pickle(
        dict({{std::string("w") + pad, tensor(storage("DoubleStorage", "0", 2), 0, {2}, {1})}}));
    const Tensor w = read_bytes(pth(data, {doubles})).tensors.at(0).second;
    CHECK(reinterpret_cast<uintptr_t>(w.raw()) % 8 == 0);
    CHECK(w.to_vector() == std::vector<double>{1.5, -2});
  }
}

TEST_CASE("damaged storages are noticed by their CRC-32") {
  const std::string whole = four_floats(0, {4}, {1});
  const size_t at = whole.find(std::string(16, 'f'));
  CHECK_THAT(message_of(replaced(whole, at + 5, "g")),
             Contains(R"(entry "x/data/0" is damaged: its CRC-32 is)"));
}
