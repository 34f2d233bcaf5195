// The packed scales of layout.h as CUTLASS describes them.
#pragma once

#include <cutlass/cutlass.h>

#include <cutlass/detail/sm100_blockscaled_layout.hpp>

#include "layout.h"

namespace tandem {

using ScaleConfig = cutlass::detail::Sm1xxBlockScaledConfig<kGroup>;
using ScaleLayout = ScaleConfig::LayoutSF;

// Scales of `count` matrices [rows, depth]: from one band of rows to the next there are `band`
// tiles, from one matrix to the next `batch` tiles.  A part of the sum, or a group of channels, is
// a matrix whose bands are those of the whole.
CUTE_HOST_DEVICE ScaleLayout scale_layout(int32_t rows, int32_t depth, int32_t count, int32_t band,
                                          int32_t batch) {
  auto tiles =
      cute::make_shape(static_cast<int32_t>(up(rows, kTileRows)), scale_tiles(depth), count);
  auto strides = cute::make_stride(band, cute::_1{}, batch);
  return cute::blocked_product(ScaleConfig::SfAtom{}, cute::make_layout(tiles, strides));
}

}  // namespace tandem
