// Parts of csrc/cuda that are plain C++, with C names for the tests.
#include "../../csrc/cuda/generic.h"
#include "../../csrc/cuda/plan.h"

using namespace tandem;

extern "C" {

int64_t host_scale_byte(int64_t row, int32_t group, int32_t tiles) { return scale_byte(row, group, tiles); }
int64_t host_scale_bytes(int64_t rows, int64_t depth) { return scale_bytes(rows, depth); }
int64_t host_group_bands(int64_t rows, int64_t groups) { return group_bands(rows, groups); }
int32_t host_group_of_row(const int32_t *ends, int32_t groups, int32_t row) { return group_of_row(ends, groups, row); }

void host_group_rows(const int32_t *ends, int32_t groups, int32_t *out) {
  for (int32_t e = 0; e < groups; ++e) {
    GroupRows found = group_rows(ends, e);
    out[3 * e] = found.first, out[3 * e + 1] = found.count, out[3 * e + 2] = found.band;
  }
}

// What place_group_rows does to the scales of rows that a group has, a word at a time.
void host_place_scales(const int32_t *ends, int32_t groups, int32_t rows, int32_t depth, const uint32_t *source,
                       uint32_t *target) {
  int32_t tiles = scale_tiles(depth);
  for (int32_t row = 0; row < rows; ++row) {
    int32_t e = group_of_row(ends, groups, row);
    if (e == groups) continue;
    GroupRows group = group_rows(ends, e);
    for (int32_t tile = 0; tile < tiles; ++tile)
      target[static_cast<int64_t>(group.band) * tiles * kTileRows + scale_word(row - group.first, tile, tiles)] =
          source[scale_word(row, tile, tiles)];
  }
}

void host_decode(float *ue8m0_values, float *e4m3_values, float *e2m1_values, float *bf16_values) {
  for (int32_t code = 0; code < 256; ++code) {
    ue8m0_values[code] = ue8m0(static_cast<uint8_t>(code));
    e4m3_values[code] = e4m3(static_cast<uint8_t>(code));
  }
  for (int32_t code = 0; code < 16; ++code) e2m1_values[code] = e2m1(static_cast<uint8_t>(code));
  for (int32_t code = 0; code < 65536; ++code) bf16_values[code] = bf16(static_cast<uint16_t>(code));
}

void host_to_bf16(const float *values, int64_t count, uint16_t *codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = to_bf16(values[i]);
}

int32_t host_tiles() { return kTileClasses; }
const char *host_tile(int32_t index, int32_t *sizes) {
  const TileClass &tile = kTiles[index];
  sizes[0] = tile.outputs, sizes[1] = tile.tokens, sizes[2] = tile.depth, sizes[3] = tile.multiprocessors;
  sizes[4] = static_cast<int32_t>(tile.kernel);
  return tile.name;
}
const char *host_tile_use(int32_t index) { return kTiles[index].use; }

const char *host_linear(int32_t x, int32_t w, int32_t out, int64_t T, int64_t N, int64_t K, int64_t *splits_and_bytes) {
  Choice choice = choose_linear(x, w, out, T, N, K);
  splits_and_bytes[0] = choice.splits;
  splits_and_bytes[1] = parts_bytes(choice, out, T, N);
  return tile_class(choice.kernel).name;
}
const char *host_group(int64_t T, int64_t G, int64_t N, int64_t K) { return tile_class(choose_group(T, G, N, K)).name; }
const char *host_grouped(int32_t w, int64_t T, int64_t E, int64_t N, int64_t K) {
  return tile_class(choose_grouped(w, T, E, N, K)).name;
}

// The generic kernel, its threads one after another.
void host_generic(const void *x, const uint8_t *x_scale, int32_t x_format, int64_t x_depth, const void *w,
                  const uint8_t *w_scale, int32_t w_format, int64_t T, int64_t batches, int64_t N, int64_t K,
                  const int32_t *ends, int64_t w_batch, int64_t w_scale_batch, void *out, int32_t out_format) {
  GenericProduct p{{x, x_scale, x_format, x_depth, scale_tiles(x_depth)}, {w, w_scale, w_format, K, scale_tiles(K)},
                   T, N, K, batches, ends, w_batch, w_scale_batch, out, out_format};
  int64_t width = generic_width(p);
  for (int64_t index = 0; index < T * width; ++index) generic_output(p, index / width, index % width, width);
}

}  // extern "C"
