// libjpeg reports errors by a callback that must not return. It jumps back here; the functions that
// call setjmp hold no object with a destructor, and state that changes after setjmp lies behind
// pointers.
#include <csetjmp>
#include <cstdio>
// libjpeg needs size_t and FILE declared first.
#include <jpeglib.h>
// Its error codes.
#include <jerror.h>

#include <cstdlib>

#include "core/error.h"
#include "data/codec.h"

namespace weft::data {
namespace codec {
namespace {

struct ErrorState {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = {};
};

[[noreturn]] void leave(j_common_ptr info) {
  auto* state = reinterpret_cast<ErrorState*>(info->err);
  info->err->format_message(info, state->message);
  std::longjmp(state->jump, 1);
}

// Level -1 is a warning: libjpeg would go on with grey pixels. Data that ends early or does not
// decode is an error here; the rest, as stray bytes between markers, leaves the pixels whole.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  const int code = info->err->msg_code;
  if (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE) leave(info);
}

void install(ErrorState& state) {
  jpeg_std_error(&state.manager);
  state.manager.error_exit = [](j_common_ptr info) { leave(info); };
  state.manager.emit_message = on_message;
}

bool read_header(jpeg_decompress_struct& info, ErrorState& state, std::span<const uint8_t> bytes) {
  if (setjmp(state.jump)) return false;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, bytes.data(), bytes.size());
  jpeg_read_header(&info, TRUE);
  return true;
}

bool start(jpeg_decompress_struct& info, ErrorState& state) {
  if (setjmp(state.jump)) return false;
  const bool four_channels = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = four_channels ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&info);
  return true;
}

/// A progressive image may repeat its scans without end, each as much work as the image itself;
/// what encoders write has about ten.
constexpr int kMaxScans = 100;

void limit_scans(j_common_ptr common) {
  const auto* const info = reinterpret_cast<jpeg_decompress_struct*>(common);
  if (info->input_scan_number <= kMaxScans) return;
  auto* const state = reinterpret_cast<ErrorState*>(common->err);
  std::snprintf(state->message, sizeof state->message, "more than %d scans", kMaxScans);
  std::longjmp(state->jump, 1);
}

// `row` has room for one decoded row of four channels.
bool read_pixels(jpeg_decompress_struct& info, ErrorState& state, Image& image, uint8_t* row) {
  if (setjmp(state.jump)) return false;
  while (info.output_scanline < info.output_height) {
    uint8_t* target = image.at(static_cast<int>(info.output_scanline), 0);
    JSAMPROW rows[1] = {info.output_components == 3 ? target : row};
    jpeg_read_scanlines(&info, rows, 1);
    if (info.output_components == 3) continue;
    // Adobe stores CMYK inverted: 255 means no ink.
    for (int x = 0; x < image.width; ++x) {
      const int black = info.saw_Adobe_marker ? row[4 * x + 3] : 255 - row[4 * x + 3];
      for (int c = 0; c < 3; ++c) {
        const int ink = info.saw_Adobe_marker ? row[4 * x + c] : 255 - row[4 * x + c];
        target[3 * x + c] = static_cast<uint8_t>((ink * black + 127) / 255);
      }
    }
  }
  jpeg_finish_decompress(&info);
  return true;
}

bool write_pixels(jpeg_compress_struct& info, ErrorState& state, const Image& image, int quality,
                  uint8_t** buffer, unsigned long* size) {
  if (setjmp(state.jump)) return false;
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, buffer, size);
  info.image_width = image.width;
  info.image_height = image.height;
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  for (int c = 0; c < 3; ++c) info.comp_info[c].h_samp_factor = info.comp_info[c].v_samp_factor = 1;
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW rows[1] = {const_cast<uint8_t*>(image.at(static_cast<int>(info.next_scanline), 0))};
    jpeg_write_scanlines(&info, rows, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

}  // namespace

Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& name) {
  struct Decoder {
    jpeg_decompress_struct info = {};
    ErrorState state;
    jpeg_progress_mgr progress = {.progress_monitor = limit_scans};
    ~Decoder() { jpeg_destroy_decompress(&info); }
  } decoder;
  install(decoder.state);
  decoder.info.err = &decoder.state.manager;
  WEFT_CHECK(read_header(decoder.info, decoder.state, bytes), "{}: damaged JPEG: {}", name,
             decoder.state.message);
  decoder.info.progress = &decoder.progress;
  // Before the start, which may allocate for the whole image.
  const int64_t height = decoder.info.image_height, width = decoder.info.image_width;
  check_pixels(width, height, "JPEG", name);
  WEFT_CHECK(start(decoder.info, decoder.state), "{}: damaged JPEG: {}", name,
             decoder.state.message);
  Image image(static_cast<int>(height), static_cast<int>(width));
  std::vector<uint8_t> row(4 * width);
  WEFT_CHECK(read_pixels(decoder.info, decoder.state, image, row.data()), "{}: damaged JPEG: {}",
             name, decoder.state.message);
  return image;
}

}  // namespace codec

std::vector<uint8_t> encode_jpeg(const Image& image, int quality) {
  struct Encoder {
    jpeg_compress_struct info = {};
    codec::ErrorState state;
    uint8_t* buffer = nullptr;
    unsigned long size = 0;
    ~Encoder() {
      jpeg_destroy_compress(&info);
      std::free(buffer);
    }
  } encoder;
  codec::install(encoder.state);
  encoder.info.err = &encoder.state.manager;
  WEFT_CHECK(codec::write_pixels(encoder.info, encoder.state, image, quality, &encoder.buffer,
                                 &encoder.size),
             "encode_jpeg: {}", encoder.state.message);
  return {encoder.buffer, encoder.buffer + encoder.size};
}

}  // namespace weft::data
