// libpng reports errors by a callback that must not return. It jumps back here; the functions that
// call setjmp hold no object with a destructor, and state that changes after setjmp lies behind
// pointers.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "data/codec.h"

namespace weft::data {
namespace codec {
namespace {

struct State {
  std::span<const uint8_t> unread;
  std::vector<uint8_t>* written = nullptr;
  char message[200] = {};
  png_structp png = nullptr;
  png_infop info = nullptr;
};

[[noreturn]] void leave(png_structp png, const char* message) {
  auto* state = static_cast<State*>(png_get_error_ptr(png));
  std::snprintf(state->message, sizeof(state->message), "%s", message);
  png_longjmp(png, 1);
}

void ignore_warning(png_structp, const char*) {}

void read_bytes(png_structp png, png_bytep target, size_t count) {
  auto* state = static_cast<State*>(png_get_io_ptr(png));
  if (state->unread.size() < count) leave(png, "the file ends early");
  std::memcpy(target, state->unread.data(), count);
  state->unread = state->unread.subspan(count);
}

void write_bytes(png_structp png, png_bytep source, size_t count) {
  auto* written = static_cast<State*>(png_get_io_ptr(png))->written;
  try {
    written->insert(written->end(), source, source + count);
  } catch (const std::bad_alloc&) {
    leave(png, "out of memory");
  }
}

bool read_header(State& state) {
  if (setjmp(png_jmpbuf(state.png))) return false;
  png_set_read_fn(state.png, &state, read_bytes);
  // Texts, profiles and what else says nothing of pixels: some of it is compressed, without a
  // bound.
  png_set_keep_unknown_chunks(state.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(state.png, state.info);
  png_set_expand(state.png);
  png_set_strip_16(state.png);
  png_set_strip_alpha(state.png);
  png_set_gray_to_rgb(state.png);
  png_set_interlace_handling(state.png);
  png_read_update_info(state.png, state.info);
  return true;
}

bool read_pixels(State& state, uint8_t** rows) {
  if (setjmp(png_jmpbuf(state.png))) return false;
  png_read_image(state.png, rows);
  png_read_end(state.png, nullptr);
  return true;
}

bool write_pixels(State& state, const Image& image) {
  if (setjmp(png_jmpbuf(state.png))) return false;
  png_set_write_fn(state.png, &state, write_bytes, nullptr);
  png_set_IHDR(state.png, state.info, image.width, image.height, 8, PNG_COLOR_TYPE_RGB,
               PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(state.png, state.info);
  for (int y = 0; y < image.height; ++y) png_write_row(state.png, image.at(y, 0));
  png_write_end(state.png, nullptr);
  return true;
}

}  // namespace

Image decode_png(std::span<const uint8_t> bytes, const std::string& name) {
  struct Decoder : State {
    ~Decoder() { png_destroy_read_struct(&png, &info, nullptr); }
  } state;
  state.unread = bytes;
  state.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state, leave, ignore_warning);
  state.info = state.png ? png_create_info_struct(state.png) : nullptr;
  WEFT_CHECK(state.info, "{}: out of memory", name);
  WEFT_CHECK(read_header(state), "{}: damaged PNG: {}", name, state.message);
  const int64_t width = png_get_image_width(state.png, state.info);
  const int64_t height = png_get_image_height(state.png, state.info);
  check_pixels(width, height, "PNG", name);
  WEFT_ASSERT(png_get_rowbytes(state.png, state.info) == static_cast<size_t>(3 * width));
  Image image(static_cast<int>(height), static_cast<int>(width));
  std::vector<uint8_t*> rows(height);
  for (int64_t y = 0; y < height; ++y) rows[y] = image.at(static_cast<int>(y), 0);
  WEFT_CHECK(read_pixels(state, rows.data()), "{}: damaged PNG: {}", name, state.message);
  return image;
}

}  // namespace codec

std::vector<uint8_t> encode_png(const Image& image) {
  struct Encoder : codec::State {
    ~Encoder() { png_destroy_write_struct(&png, &info); }
  } state;
  std::vector<uint8_t> written;
  state.written = &written;
  state.png =
      png_create_write_struct(PNG_LIBPNG_VER_STRING, &state, codec::leave, codec::ignore_warning);
  state.info = state.png ? png_create_info_struct(state.png) : nullptr;
  WEFT_CHECK(state.info, "encode_png: out of memory");
  WEFT_CHECK(codec::write_pixels(state, image), "encode_png: {}", state.message);
  return written;
}

}  // namespace weft::data
