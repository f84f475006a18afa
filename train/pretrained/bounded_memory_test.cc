// What reading costs. A file may claim any size; what it makes the reader take is bounded by the
// bytes it has, and enforced here by the system: beyond the limit every allocation fails. Files are
// mapped, so that loading weights costs the file's pages once and no copy.
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <new>

#include "io/crafted_files.h"
#include "io/pickle_reader.h"
#include "models/vit.h"
#include "tests/memory_limit.h"
#include "tests/skip.h"
#include "train/pretrained/pretrained.h"

namespace weft::train {
namespace {

using namespace io::crafted;
using Catch::Matchers::Contains;
using tests::AddressSpaceLimit;
using tests::reset_peak;
using tests::status;

constexpr int64_t kMiB = int64_t{1} << 20;

io::Path scratch(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  return io::Path(directory ? directory : "/tmp") / name;
}

/// A file of these bytes at the front and at the end, and zeros that take no disk in between.
io::Path sparse_file(const std::string& name, const std::string& front, int64_t size,
                     const std::string& end = "") {
  const io::Path path = scratch(name);
  std::ofstream file(path, std::ios::binary);
  file << front;
  file.close();
  std::filesystem::resize_file(path, static_cast<uintmax_t>(size));
  std::fstream again(path, std::ios::binary | std::ios::in | std::ios::out);
  again.seekp(size - static_cast<int64_t>(end.size()));
  again << end;
  return path;
}

/// What reading the bytes as a file comes to with `bytes_more` of memory beside the file's mapping.
std::string outcome(const std::string& bytes, int64_t bytes_more) {
  const io::Path path = sparse_file("case", bytes, static_cast<int64_t>(bytes.size()));
  std::string result;
  {
    const AddressSpaceLimit limit(static_cast<int64_t>(bytes.size()) + bytes_more);
    try {
      result = fmt::format("{} tensors", read_weight_file(path).tensors.size());
    } catch (const Error& error) {
      result = error.what();
    } catch (const std::bad_alloc&) {
      result = "out of memory";
    }
  }
  std::filesystem::remove(path);
  return result;
}

std::string safetensors(const std::string& header, const std::string& data = "") {
  return number<uint64_t>(header.size()) + header + data;
}

std::string repeated(const std::string& text, size_t count) {
  std::string result;
  result.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

}  // namespace

TEST_CASE("the limit of address space is one") {
  CHECK_THROWS_AS(
      [] {
        const AddressSpaceLimit limit(kMiB);
        const std::vector<char> more(16 * kMiB);
        return more[7];
      }(),
      std::bad_alloc);
}

TEST_CASE("files that claim more than they hold are refused within a megabyte") {
  constexpr int64_t kHuge = int64_t{1} << 62, kLarge = int64_t{1} << 40;
  const std::string four(16, 'f');
  const auto entry = [](const char* dtype, int64_t size, int64_t end) {
    return safetensors(fmt::format(R"({{"x":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}})",
                                   dtype, size, end),
                       "abcd");
  };
  const auto stored = [&](int64_t numel) {
    return pth(pickle(dict({{"w", tensor(storage("FloatStorage", "0", numel), 0, {4}, {1})}})),
               {four});
  };
  // A bomb: four bytes of raw deflate that promise 4 GiB.
  Entry bomb = {.name = "x/data/0", .data = "abcd", .method = 8};
  const std::string good =
      pickle(dict({{"w", tensor(storage("FloatStorage", "0", 4), 0, {4}, {1})}}));
  std::string bombs = zip({{"x/data.pkl", good}, bomb});
  for (const char* signature : {"PK\x03\x04", "PK\x01\x02"}) {
    const size_t header = bombs.rfind(signature);
    bombs.replace(header + (signature[2] == 3 ? 22 : 24), 4, number<uint32_t>(0xfffffff0));
  }
  const std::pair<std::string, const char*> cases[] = {
      {number<uint64_t>(kLarge) + "{}", "its header would be 1099511627776 bytes long"},
      {number<uint64_t>(99'999'999) + "{}", "the file is cut short"},
      {entry("U8", kLarge, kLarge), "the file is cut short"},
      {entry("F64", kHuge, 4), "is too large"},
      {bombs, R"(entry "x/data/0" is compressed (method 8))"},
      {stored(kLarge), "holds 16 bytes, not the 1099511627776 * 4"},
      {four_floats(0, {kHuge}, {0}), "is too large"},
      {four_floats(0, {kLarge}, {0}), "with this one the tensors would hold 4398046511104 bytes"},
      {pth("\x80\x02X" + number<uint32_t>(0xfffffff0) + "a."), "a string of 4294967280 bytes"},
      {pth(pickle("}r" + number<uint32_t>(0xfffffff0))), "0 tensors"},
  };
  for (const auto& [bytes, message] : cases) {
    INFO(message);
    CHECK_THAT(outcome(bytes, kMiB), Contains(message));
  }
}

TEST_CASE("a safetensors header takes at most 24 times its bytes") {
  // What takes the most memory for its bytes: the shortest tensors, the shortest metadata.
  constexpr int64_t kHeader = 8 * kMiB;
  std::string tensors = "{", metadata = R"({"__metadata__":{)";
  for (int i = 0; static_cast<int64_t>(tensors.size()) < kHeader; ++i) {
    tensors += fmt::format(R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},)", i);
  }
  for (int i = 0; static_cast<int64_t>(metadata.size()) < kHeader; ++i) {
    metadata += fmt::format(R"("{}":"",)", i);
  }
  tensors.back() = '}';
  metadata.back() = '}';
  metadata += "}";
  const std::pair<std::string, const char*> cases[] = {
      {tensors, " tensors"},
      {metadata, "0 tensors"},
      {"{\"" + std::string(kHeader, 'x'), "not valid JSON"},
      {R"({"x":)" + std::string(kHeader, '['), "an array where tensor"},
      {repeated(R"({"x":)", kHeader / 5), "has an unknown field"},
      {R"({"x":{"dtype":"U8","shape":[)" + repeated("1,", kHeader / 2), "more than 8 dimensions"},
  };
  for (const auto& [header, message] : cases) {
    INFO(message);
    CHECK_THAT(outcome(safetensors(header), 24 * kHeader), Contains(message));
  }
}

TEST_CASE("a pickle takes at most 256 MiB, whatever it holds") {
  constexpr size_t kMost = io::PickleLimits().bytes - 64, kNodes = io::PickleLimits().nodes - 8;
  std::string slots = "]", texts = "]";
  for (uint32_t i = 0; i < io::PickleLimits().memo; ++i) slots += "r" + number(i * 2654435761u);
  while (texts.size() + 22 < kMost && texts.size() < 22 * kNodes) {
    texts += text("sixteen and more") + "a";
  }
  const std::pair<std::string, const char*> cases[] = {
      {"]" + repeated("Na", kNodes), "holds a list"},
      {"](" + repeated("N", kNodes) + "e", "holds a list"},
      {repeated("N", kMost), "more than 1048576 values"},
      {slots, "holds a list"},
      {texts, "holds a list"},
      {"]" + repeated(text(std::string(65536, 'x')) + "a", kMost / 65542), "holds a list"},
      {"]" + repeated(")a", kNodes), "holds a list"},
      {"]" + repeated("N\x85"
                      "a",
                      kNodes / 2),
       "holds a list"},
      {"}" + repeated("NNs", kNodes / 2), "the state dict has the key None"},
      // One value that stands in a list millions of times.
      {"]Nq\x01"
       "a" +
           repeated("(" + repeated("h\x01", 500000) + "e", kMost / 1000002),
       "holds a list"},
      {std::string(io::PickleLimits().bytes + 1, 'N'), "at most"},
  };
  for (const auto& [code, message] : cases) {
    INFO(message << ", " << code.size() << " bytes");
    CHECK_THAT(outcome(pth(pickle(code)), 256 * kMiB), Contains(message));
  }
}

TEST_CASE("a ZIP directory takes at most 8 times its bytes") {
  std::vector<Entry> entries = {{"x/data.pkl", pickle("}")}};
  for (int i = 0; i < 60000; ++i) entries.push_back({fmt::format("x/{:x}", i), ""});
  const std::string archive = zip(entries);
  const auto directory = static_cast<int64_t>(archive.size() - archive.find("PK\x01\x02"));
  CHECK(outcome(archive, 8 * directory) == "0 tensors");
}

TEST_CASE("a file larger than the machine's memory is mapped, not read") {
  constexpr int64_t kBytes = int64_t{1} << 40;
  const std::string header = fmt::format(
      R"({{"x":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}}}})", kBytes / 4, kBytes);
  const std::string front = safetensors(header + std::string(8 - header.size() % 8, ' '));
  const int64_t before = status("RssAnon");
  const io::Path path =
      sparse_file("huge", front, static_cast<int64_t>(front.size()) + kBytes, number(2.5f));
  {
    const Tensor x = read_weight_file(path).tensors.at(0).second;
    CHECK(x.numel() == kBytes / 4);
    CHECK(x.data<float>()[kBytes / 4 - 1] == 2.5f);
  }
  std::filesystem::remove(path);
  CHECK(status("RssAnon") - before < kMiB);
}

namespace {

struct Growth {
  int64_t anonymous, peak;
};

/// What f leaves in memory that is no file's, and the most memory it needed.
template <class F>
Growth growth_of(F&& f) {
  reset_peak();
  const int64_t anonymous = status("RssAnon"), peak = status("VmHWM");
  f();
  return {status("RssAnon") - anonymous, status("VmHWM") - peak};
}

}  // namespace

TEST_CASE("loading costs the file's pages once, and no copy") {
  if (!reset_peak()) WEFT_SKIP("peak memory: /proc/self/clear_refs cannot be written");
  models::VitConfig config = {.image_size = 32, .classes = 10};
  config.encoder = {.layers = 4, .heads = 8, .width = 512, .hidden = 2048};
  models::VisionTransformer model(config);
  // Pages that the system hands out in larger pieces than asked for.
  constexpr int64_t kSlack = 6 * kMiB;
  int64_t joined = 0;  // query, key and value of one layer after another are made one matrix
  for (const auto& [name, tensor] : model.state_dict()) {
    if (name.find("in_proj") != std::string::npos) joined += static_cast<int64_t>(tensor.nbytes());
  }
  for (const VitNames names : {VitNames::kTorchvision, VitNames::kTimm, VitNames::kHuggingFace}) {
    INFO(name(names));
    const io::Path path = scratch("model.safetensors");
    io::write_safetensors(path, from_torchvision(model.state_dict(), names));
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
    REQUIRE(bytes > 48 * kMiB);
    ::malloc_trim(0);
    const Growth reading = growth_of([&] { io::read_safetensors(path); });
    CHECK(reading.peak < kMiB);
    const int64_t copies = names == VitNames::kHuggingFace ? joined : 0;
    const Growth loading = growth_of([&] {
      Pretrained pretrained = read_pretrained(path);
      pretrained.heads = config.encoder.heads;
      CHECK(load_pretrained(model, pretrained).empty());
    });
    CHECK(loading.peak >= bytes / 2);  // the file's pages are counted at all
    CHECK(loading.peak <= bytes + copies + kSlack);
    CHECK(loading.anonymous <= copies + kSlack);
    std::filesystem::remove(path);
  }
}

TEST_CASE("checksums are verified without the file's pages in memory, which come when used") {
  if (!reset_peak()) WEFT_SKIP("peak memory: /proc/self/clear_refs cannot be written");
  constexpr int64_t kNumel = 16 * kMiB, kBytes = 4 * kNumel;
  // What is read as mapped lies at the file's beginning and end, and the system may map as much as
  // a large page, 2 MiB, around each.
  constexpr int64_t kMapped = 2 * 2 * kMiB + kMiB;
  const io::Path ours = scratch("summed.safetensors"), theirs = scratch("summed.pth");
  io::write_safetensors(ours, {{"w", Tensor::full({kNumel}, 1.5)}});
  {
    // torch.save aligns its floats; what is not aligned would be copied.
    std::string file;
    for (std::string name = "w"; file.empty() || file.find("ffff") % 4 != 0; name += 'w') {
      const std::string values = tensor(storage("FloatStorage", "0", kNumel), 0, {kNumel}, {1});
      file = pth(pickle(dict({{name, values}})), {std::string(kBytes, 'f')});
    }
    std::ofstream(theirs, std::ios::binary) << file;
  }
  for (const io::Path& path : {ours, theirs}) {
    INFO(path.string());
    ::malloc_trim(0);
    Tensor w;
    const Growth reading = growth_of([&] { w = read_pretrained(path).state.at(0).second; });
    CHECK(reading.peak < kMapped);
    REQUIRE(w.numel() == kNumel);
    double sum = 0;
    const Growth using_it = growth_of([&] {
      for (int64_t i = 0; i < kNumel; ++i) sum += w.data<float>()[i];
    });
    CHECK(sum > 0);
    CHECK(using_it.peak >= kBytes / 2);  // the file's pages are counted at all
    w = Tensor();
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(kBytes / 2);
    file << 'x' << std::flush;
    CHECK_THROWS_WITH(read_pretrained(path), Contains("is damaged"));
    std::filesystem::remove(path);
  }
}

}  // namespace weft::train
