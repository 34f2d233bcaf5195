// The launch after a pass that collapses and projects: coefficients, and the norm of the collapsed
// rows in place with its quantised copy.
//
// Rows are normalised from the last block on, coefficients mixed from the first one: where rows are
// few, no core does both.
#pragma once

#include "_hyper.h"
#include "_mixing.h"
#include "_norm_rows.h"

namespace hyper {

__aicore__ inline void finish(const Coefficients &coefficients, const Mixing &mixing,
                              const norm::Operands &operands, uint32_t width) {
  TPipe pipe;
  MixRows mix;
  norm::NormRows normed;
  mix.init(pipe, coefficients, mixing);
  normed.init(pipe, operands, mixing.rows, width, mixing.norm_eps);
  mix.run(GetBlockIdx(), GetBlockNum());
  normed.run(GetBlockNum() - 1 - GetBlockIdx(), mixing.rows, GetBlockNum());
}

inline int32_t check_finish(const tandem_ascend_device *device, const Mixing &mixing,
                            uint32_t width) {
  if (!mixing.valid() || width % codec::Mxfp8::kGroup != 0) return TANDEM_BAD_VALUE;
  const int64_t bytes = mixing.total() + norm::room(width, true, true);
  return rows::fits(device, bytes) ? TANDEM_OK : TANDEM_TOO_LARGE;
}

inline int64_t finish_blocks(const tandem_ascend_device *device, const Mixing &mixing) {
  return rows::row_blocks(device, mixing.tasks() + mixing.rows);
}

}  // namespace hyper
