// embed: rows of the embedding table as bf16, some replaced by given rows.
//
//   ids       i32 [T]          in [0, V), where the row comes from the table
//   wide      bf16 [V, H]      the table in format TANDEM_BF16, else NULL
//   plain     f32 [V, H]       in format TANDEM_F32, else NULL
//   codes     u8               in another format, else NULL; [V, H], fp4: [V, H / 2]
//   scales    u8               with codes: [V, H / group], fp8_block32: [ceil(V / 32), ceil(H /
//   32)] given16   bf16 [N, H]      rows that replace others; they are given in one of the two
//   types given32   f32 [N, H]       or, both NULL, not at all index     i32 [T]          row of
//   them, negative: of the table; NULL: all from the table y         bf16 [T, H]      out format of
//   the table
//
// Values of the table and of f32 rows are rounded once to bf16.
#include "codecs.h"
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::embed {

constexpr int64_t kPiece = 512;  // columns that are decoded at a time

struct Table {
  const uint16_t *wide;
  const float *plain;
  const uint8_t *codes, *scales;
  int64_t V, H, format;
};

TANDEM_INLINE void round_row(const float *x, uint16_t *y, int64_t n) {
  map_row(x, y, n, [](const Register &v, int64_t) { return v; });
}

// The last group of a row may be short.
TANDEM_INLINE void decode_blocks(const uint8_t *codes, const uint8_t *scales, int64_t n,
                                 float *values) {
  for (int64_t k = 0; k < n; ++k) values[k] = decode_e4m3(codes[k]) * decode_ue8m0(scales[k / 32]);
}

TANDEM_INLINE void decode_id(const Table &table, int64_t id, uint16_t *y) {
  const int64_t H = table.H, format = table.format;
  const bool blocks = format == TANDEM_FP8_BLOCK32;
  const int64_t group = blocks ? 32 : group_of(format), width = (H + group - 1) / group;
  const int64_t bytes = blocks ? H : code_bytes(format, H);
  const uint8_t *codes = table.codes + id * bytes;
  const uint8_t *scales = table.scales + (blocks ? id / 32 : id) * width;
  for (int64_t k = 0; k < H; k += kPiece) {
    const int64_t n = H - k < kPiece ? H - k : kPiece;
    float values[kPiece];
    if (blocks)
      decode_blocks(codes + k, scales + k / group, n, values);
    else
      decode_row(format, codes + code_bytes(format, k), scales + k / group, n, values);
    round_row(values, y + k, n);
  }
}

TANDEM_INLINE void table_row(const Table &table, int64_t id, uint16_t *y) {
  const int64_t H = table.H;
  if (table.format == TANDEM_BF16)
    std::memcpy(y, table.wide + id * H, static_cast<size_t>(H) * sizeof *y);
  else if (table.format == TANDEM_F32)
    round_row(table.plain + id * H, y, H);
  else
    decode_id(table, id, y);
}

TANDEM_INLINE int32_t check_table(const Table &table) {
  const bool blocks = table.format == TANDEM_FP8_BLOCK32;
  const bool wide = table.format == TANDEM_BF16 || table.format == TANDEM_F32;
  if (!wide && !blocks && !group_of(table.format)) return TANDEM_BAD_VALUE;
  if (table.V < 0 || table.H < 1 || (!wide && !blocks && table.H % group_of(table.format)))
    return TANDEM_BAD_SHAPE;
  const bool there = table.format == TANDEM_BF16  ? table.wide != nullptr
                     : table.format == TANDEM_F32 ? table.plain != nullptr
                                                  : table.codes && table.scales;
  return there || !table.V ? TANDEM_OK : TANDEM_NULL_POINTER;
}

int32_t run(const int32_t *ids, const uint16_t *wide, const float *plain, const uint8_t *codes,
            const uint8_t *scales, const uint16_t *given16, const float *given32,
            const int32_t *index, uint16_t *y, int64_t T, int64_t V, int64_t H, int64_t N,
            int64_t format) {
  const Table table{wide, plain, codes, scales, V, H, format};
  if (const int32_t status = check_table(table)) return status;
  if (T < 0 || N < 0) return TANDEM_BAD_SHAPE;
  if (T && (!ids || !y || (index && N && !given16 == !given32))) return TANDEM_NULL_POINTER;
  for (int64_t t = 0; t < T; ++t) {
    const bool replaced = index && index[t] >= 0;
    if (replaced ? index[t] >= N : ids[t] < 0 || ids[t] >= V) return TANDEM_BAD_INDEX;
  }
  parallel_for(T, 4 * H, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t given = index ? index[t] : -1;
      if (given < 0)
        table_row(table, ids[t], y + t * H);
      else if (given16)
        std::memcpy(y + t * H, given16 + given * H, static_cast<size_t>(H) * sizeof *y);
      else
        round_row(given32 + given * H, y + t * H, H);
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::embed
