#pragma once

#include "../include/tandem_ascend.h"

/* draft_heads, around a product of embedded rows with the head ("linear_bf16"): before it, the
 * embedding of the token before each row, and the row's confidence; after it, the sum with the
 * base.
 *
 * hidden bf16 [rows, width] with `stride` elements from row to row; previous int32 [rows], -1 for
 * none; embedding bf16 [.., rank]; proj float [width + rank]. Returns embedded bf16 [rows, rank],
 * zeros where there is no token, and confidence float [rows] = sigmoid(clip((proj . [hidden,
 * embedded]) / temperature, -60, 60)), 0 where there is none. */
TANDEM_API int32_t tandem_ascend_draft_heads_before(const tandem_ascend_device *device,
                                                    void *stream, const uint16_t *hidden,
                                                    const int32_t *previous,
                                                    const uint16_t *embedding, const float *proj,
                                                    uint16_t *embedded, float *confidence,
                                                    int64_t rows, int32_t width, int32_t rank,
                                                    int64_t stride, float temperature);

/* logits float [rows, vocab], which holds the product: base + logits, or -inf where previous is -1.
 * base float [rows, vocab] with `stride` floats from row to row. */
TANDEM_API int32_t tandem_ascend_draft_heads_after(const tandem_ascend_device *device, void *stream,
                                                   const float *base, const int32_t *previous,
                                                   float *logits, int64_t rows, int64_t vocab,
                                                   int64_t stride);
