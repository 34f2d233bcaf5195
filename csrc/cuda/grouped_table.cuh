// The problem table of a grouped product: one entry for each group, in device memory, written by a
// kernel.
#pragma once

#include "kernels.h"
#include "scale_layout.cuh"

namespace tandem {

using GroupShape = cute::Shape<int, int, int>;
using GroupStride = cute::Stride<int64_t, cute::_1, cute::_0>;
using GroupOutStride = cute::Stride<cute::_1, int64_t, cute::_0>;

struct GroupTable {
  GroupShape *shape;
  const void **w, **x;
  const void **w_scale, **x_scale;
  void **out;
  GroupStride *w_stride, *x_stride;
  GroupOutStride *out_stride;
  ScaleLayout *w_layout, *x_layout;
  uint8_t *scales;  // of the activation, packed anew so that each group begins with a band
};

// The table in a workspace; the rest of the workspace in `rest`.
GroupTable carve(Workspace workspace, const Groups &g, Workspace *rest);

// Fill the table, pack the scales anew and zero the rows that no group has.
int32_t prepare_groups(const Groups &g, const GroupTable &table, Stream stream);

}  // namespace tandem
