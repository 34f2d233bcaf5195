// Splits rows over the OpenMP threads that the host process already has.
#pragma once

#include <cstdint>

namespace tandem {

// Works on rows [begin, end) of a call described by ctx.
using RowsFn = void (*)(const void *ctx, int64_t begin, int64_t end);

// True when an OpenMP runtime was visible at load time.
bool parallel_available();

// Runs fn over [0, rows), in one thread unless the work (rows * work_per_row, in elementary
// operations) is worth waking others. Rows are independent, so the split never changes a result.
void for_rows(int64_t rows, int64_t work_per_row, RowsFn fn, const void *ctx);

}  // namespace tandem
