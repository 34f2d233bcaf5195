// Attention, second half: weighted sums of entries, chunk by chunk, and the steps of a whole call.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention.h"
#include "attention_scores.h"
#include "parallel.h"
#include "registers.h"

namespace tandem::TANDEM_ISA::attention {

// A part of a row's output: heads [head, head + heads), channels [dim, dim + width).
struct OutputBlock {
  int64_t head, heads, dim, width;
  float values[kBlockHeads * kBlockDim];  // of head i at i * kBlockDim
};

// With m the largest of the chunks' peaks and the sink: e^(peak - m) of each chunk is what its sums
// count, and their total with e^(sink - m) is the divisor.
struct Merge {
  static constexpr int kCount = kBlockHeads / kRegister;
  Register highest[kCount], total[kCount];

  TANDEM_INLINE Merge(const Attention &a, int64_t place, int64_t head) {
    float sinks[kBlockHeads] = {};
    const int64_t heads = a.H - head < kBlockHeads ? a.H - head : kBlockHeads;
    std::memcpy(sinks, a.sink + head, static_cast<size_t>(heads) * sizeof *sinks);
    for (int i = 0; i < kCount && head + i * kRegister < a.lanes(); ++i) {
      const int64_t first = head + i * kRegister;
      const Register sink = load_register(sinks + i * kRegister);
      highest[i] = sink;
      for (int64_t c = 0; c < a.chunks(); ++c) {
        const Chunk chunk(a, place, c);
        if (*chunk.count) highest[i] = higher(load_register(chunk.peak + first), highest[i]);
      }
      total[i] = exp_weight(sink - highest[i]);
      for (int64_t c = 0; c < a.chunks(); ++c) {
        const Chunk chunk(a, place, c);
        if (*chunk.count)
          total[i] += load_register(chunk.sum + first) *
                      exp_weight(load_register(chunk.peak + first) - highest[i]);
      }
    }
  }

  TANDEM_INLINE void factors(const Attention &a, const Chunk &chunk, int64_t head,
                             float *out) const {
    for (int i = 0; i < kCount && head + i * kRegister < a.lanes(); ++i) {
      const Register peak = load_register(chunk.peak + head + i * kRegister);
      store_register(out + i * kRegister, exp_weight(peak - highest[i]) / total[i]);
    }
  }
};

// out += factor * sum of weights and keys, for `Heads` heads and `Dims` registers of channels. A
// lane adds the pairs of entries in order, by their weights and then by what is missing to them.
template <int Heads, int Dims>
TANDEM_INLINE void add_sums(const uint32_t *weights, int64_t lanes, const uint16_t *keys, int64_t D,
                            int64_t pairs, const float *factors, float *out) {
  Register sums[Heads][Dims] = {};
  for (int64_t i = 0; i < pairs; ++i) {
    Pairs key[Dims];
    for (int d = 0; d < Dims; ++d) key[d] = Pairs::load(keys + i * 2 * D + d * 2 * kRegister);
    for (int h = 0; h < Heads; ++h) {
      const Pairs weight = Pairs::all(weights + 2 * i * lanes + h);
      const Pairs rest = Pairs::all(weights + (2 * i + 1) * lanes + h);
      for (int d = 0; d < Dims; ++d) sums[h][d] = key[d].dot(key[d].dot(sums[h][d], weight), rest);
    }
  }
  for (int h = 0; h < Heads; ++h) {
    for (int d = 0; d < Dims; ++d) {
      float *place = out + h * kBlockDim + d * kRegister;
      store_register(place, load_register(place) + sums[h][d] * factors[h]);
    }
  }
}

inline void sum_block(const Attention &a, int64_t place, OutputBlock &block) {
  const Merge merge(a, place, block.head);
  const int64_t lanes = a.lanes();
  std::memset(block.values, 0, sizeof block.values);
  float factors[kBlockHeads];
  for (int64_t c = 0; c < a.chunks(); ++c) {
    const Chunk chunk(a, place, c);
    const int64_t pairs = (*chunk.count + 1) / 2;
    if (!pairs) continue;
    merge.factors(a, chunk, block.head, factors);
    const uint16_t *keys = chunk.keys + 2 * block.dim;
    // Heads that fill a step up are lanes whose query is zero.
    for (int64_t h = 0; h < block.heads; h += kStepWords) {
      const uint32_t *weights = chunk.weights + block.head + h;
      float *out = block.values + h * kBlockDim;
      int64_t k = 0;
      for (; k + kStepRegisters * kRegister <= block.width; k += kStepRegisters * kRegister)
        add_sums<kStepWords, kStepRegisters>(weights, lanes, keys + 2 * k, a.D, pairs, factors + h,
                                             out + k);
      for (; k < block.width; k += kRegister)
        add_sums<kStepWords, 1>(weights, lanes, keys + 2 * k, a.D, pairs, factors + h, out + k);
    }
  }
}

// Task i of those of some rows' sums; rows follow each other, since they differ in length.
TANDEM_INLINE OutputBlock output_block(const Attention &a, int64_t i, int64_t rows, int64_t *row) {
  const int64_t groups = parts(a.H, kBlockHeads);
  *row = i / groups % rows;
  OutputBlock block;
  block.head = i % groups * kBlockHeads;
  block.heads = a.H - block.head < kBlockHeads ? a.H - block.head : kBlockHeads;
  block.dim = i / groups / rows * kBlockDim;
  block.width = a.D - block.dim < kBlockDim ? a.D - block.dim : kBlockDim;
  return block;
}

// Some rows at a time, whose tasks the threads share: for few rows.
template <typename Finish>
inline void attend_together(const Attention &a, uint64_t call, const Finish &finish) {
  const int64_t vecs = a.lanes() / kLanes, chunks = a.chunks();
  const int64_t blocks = parts(a.H, kBlockHeads) * parts(a.D, kBlockDim);
  for (int64_t first = 0; first < a.T; first += a.rows) {
    const int64_t rows = a.T - first < a.rows ? a.T - first : a.rows;
    parallel_for(rows * vecs, 2 * kLanes * a.D, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) prepare_query(a, first + i / vecs, i / vecs, i % vecs);
    });
    parallel_for(rows * chunks, kChunk * a.lanes() * a.D / 32, [&](int64_t begin, int64_t end) {
      Decoded *decoded = a.alike ? Decoded::of_thread(call, a.D) : nullptr;
      for (int64_t i = begin; i < end; ++i)
        score_chunk(a, first + i % rows, i % rows, dealt(i / rows, chunks), decoded);
    });
    const int64_t work = kChunk * chunks * kBlockHeads * kBlockDim / 32;
    parallel_for(rows * blocks, work, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t place;
        OutputBlock block = output_block(a, i, rows, &place);
        sum_block(a, place, block);
        finish(first + place, block);
      }
    });
  }
}

// All of a row, in the memory of a place.
template <typename Finish>
inline void attend_row(const Attention &a, int64_t t, int64_t place, Decoded *decoded,
                       const Finish &finish) {
  for (int64_t vec = 0; vec < a.lanes() / kLanes; ++vec) prepare_query(a, t, place, vec);
  for (int64_t chunk = 0; chunk < a.chunks(); ++chunk) score_chunk(a, t, place, chunk, decoded);
  const int64_t blocks = parts(a.H, kBlockHeads) * parts(a.D, kBlockDim);
  for (int64_t i = 0; i < blocks; ++i) {
    int64_t row;
    OutputBlock block = output_block(a, i, 1, &row);
    sum_block(a, place, block);
    finish(t, block);
  }
}

// Every place has rows of its own, so that no thread waits for another: for many rows. Those that
// are alike stay together, few enough that all places get early and late ones.
template <typename Finish>
inline void attend_apart(const Attention &a, uint64_t call, const Finish &finish) {
  const int64_t together = a.alike ? kAlikeRows : 1, pieces = parts(a.T, together);
  parallel_for(a.rows, a.T / a.rows * kChunk * a.lanes() * a.D / 32,
               [&](int64_t begin, int64_t end) {
                 Decoded *decoded = a.alike ? Decoded::of_thread(call, a.D) : nullptr;
                 for (int64_t place = begin; place < end; ++place)
                   for (int64_t piece = place; piece < pieces; piece += a.rows)
                     for (int64_t t = piece * together; t < a.T && t < (piece + 1) * together; ++t)
                       attend_row(a, t, place, decoded, finish);
               });
}

// finish(row, block) gets every part of every row's output.
template <typename Finish>
inline void attend(const Attention &a, const Finish &finish) {
  const uint64_t call = Decoded::next_call();
  if (a.T && a.T >= 2 * a.rows)
    attend_apart(a, call, finish);
  else
    attend_together(a, call, finish);
}

}  // namespace tandem::TANDEM_ISA::attention
