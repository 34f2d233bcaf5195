#pragma once

#include "../include/tandem_ascend.h"

/* moe_route: the k best experts of each row, and their weights.
 *
 * logits: f32 [rows, experts]. bias, bias_vl: f32 [experts], for rows whose role is 0 and for
 * others. roles: int32 [rows]. chosen: int32 [rows, k]. weights: f32 [rows, k].
 *
 * s = sqrt(log(1 + exp(logit))). Chosen are the largest s + bias, NaN as -inf, by (score
 * descending, index ascending) and in that order; weights are s / (their sum + 1e-20) * scaling. 1
 * <= k <= 32, k <= experts. */
TANDEM_API int32_t tandem_ascend_moe_route(const tandem_ascend_device *device, void *stream,
                                           const float *logits, const float *bias,
                                           const float *bias_vl, const int32_t *roles,
                                           int32_t *chosen, float *weights, int64_t rows,
                                           int32_t experts, int32_t k, float scaling);
