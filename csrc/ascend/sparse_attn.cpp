// sparse_attn: a block, a cube core with its vector cores, takes a row, and of many heads a part.
#include "sparse_attn.h"

#include "_attention_vector.h"

using namespace tandem;

namespace {

// All that the kernel is told but pointers.
struct Shape {
  uint32_t rows, heads, dim, part, blocks, l0_bytes;
  uint32_t window_count, main_count;
  int32_t window_format, main_format;
  float scale;
};

// f(row, first head, heads of the part) for the tasks of a block.
template <class F>
__aicore__ inline void each_part(const Shape &s, uint32_t block, F f) {
  const uint32_t parts = (s.heads + s.part - 1) / s.part;
  for (uint32_t i = block; i < s.rows * parts; i += s.blocks) {
    const uint32_t first = i % parts * s.part;
    f(i / parts, first, Heads{s.heads - first < s.part ? s.heads - first : s.part});
  }
}

__aicore__ inline uint32_t half_of(uint32_t part) { return (part + 1) / 2; }

__aicore__ inline TwoLists lists_of(const Shape &s, uint32_t row, Gm<uint8_t> window,
                                    Gm<int32_t> window_slots, Gm<uint8_t> main,
                                    Gm<int32_t> main_slots) {
  TwoLists lists;
  lists.window = {
      window, {window_slots + int64_t(row) * s.window_count, s.window_count}, s.window_format};
  lists.main = {main, {main_slots, s.main_count}, s.main_format};
  if (s.main_count > 0) lists.main.list.slots = main_slots + int64_t(row) * s.main_count;
  return lists;
}

__aicore__ inline void cube_side(Gm<bfloat16_t> q, const Shape &s, const TwoLists &any_row) {
  begin_products();
  AttentionCube cube(s.dim, s.part, s.l0_bytes, AttentionVector::plan(half_of(s.part), s.dim));
  cube.begin();
  each_part(s, uint32_t(AscendC::GetBlockIdx()), [&](uint32_t row, uint32_t first, Heads heads) {
    cube.run(q + (int64_t(row) * s.heads + first) * s.dim, heads, any_row.chunks());
  });
  cube.end();
}

}  // namespace

__global__ __mix__(1, 2) void sparse_attn_kernel(
    Gm<bfloat16_t> q, Gm<uint8_t> window, Gm<int32_t> window_slots, Gm<uint8_t> main,
    Gm<int32_t> main_slots, Gm<float> sink, Gm<bfloat16_t> out, uint32_t rows, uint32_t heads,
    uint32_t dim, uint32_t window_count, uint32_t main_count, int32_t window_format,
    int32_t main_format, float scale, uint32_t part, uint32_t blocks, uint32_t l0_bytes) {
  const Shape s{rows,         heads,      dim,           part,        blocks, l0_bytes,
                window_count, main_count, window_format, main_format, scale};
  if (ASCEND_IS_AIC) cube_side(q, s, lists_of(s, 0, window, window_slots, main, main_slots));
  if (ASCEND_IS_AIV) {
    AscendC::InitSocState();
    rows::keep_infinity_and_nan();
    AttentionVector vector(s.dim, half_of(s.part), s.part);
    vector.begin();
    each_part(s, uint32_t(AscendC::GetBlockIdx()) / 2,
              [&](uint32_t row, uint32_t first, Heads some) {
                vector.run(lists_of(s, row, window, window_slots, main, main_slots), some,
                           sink + first, s.scale, out + (int64_t(row) * s.heads + first) * s.dim);
              });
    vector.end();
  }
  AscendC::PipeBarrier<PIPE_ALL>();
}

namespace {

bool fits_heads(const tandem_ascend_device &device, uint32_t part, uint32_t dim) {
  const int64_t lines = round_up(part, 16);
  return rows::fits(&device, AttentionVector::room((part + 1) / 2, dim)) &&
         AttentionCube::weights_base(dim) + 2 * lines * (kChunk + dim) <= device.l1_bytes &&
         4 * lines * (kChunk + dim) <= device.l0c_bytes;
}

// Heads of a task, 0 where not even one fits. Few rows are cut into parts of fewer heads, which
// gather the same entries, so that more cores have work.
uint32_t heads_of_a_task(const tandem_ascend_device &device, int64_t rows, uint32_t heads,
                         uint32_t dim) {
  uint32_t part = heads < 64 ? heads : 64;
  while (part > 0 && !fits_heads(device, part, dim)) part /= 2;
  while (part >= 32 && rows * ceil_div(heads, part) < device.cube_cores) part /= 2;
  return part;
}

}  // namespace

int32_t tandem_ascend_sparse_attn(const tandem_ascend_device *device, void *stream,
                                  const uint16_t *q, const uint8_t *window,
                                  const int32_t *window_slots, const uint8_t *main,
                                  const int32_t *main_slots, const float *sink, uint16_t *out,
                                  int64_t T, int32_t heads, int32_t dim, int32_t window_count,
                                  int32_t main_count, int32_t window_format, int32_t main_format,
                                  float scale) {
  if (T < 0 || heads < 1 || window_count < 0 || main_count < 0 || dim % 16 != 0 ||
      !codec::whole_groups(dim, window_format) ||
      (main_count > 0 && !codec::whole_groups(dim, main_format)))
    return TANDEM_BAD_VALUE;
  const uint32_t part = heads_of_a_task(*device, T, uint32_t(heads), uint32_t(dim));
  if (part == 0 || T * heads > INT32_MAX / 2) return TANDEM_TOO_LARGE;
  if (T == 0) return TANDEM_OK;
  const int64_t tasks = T * ceil_div(heads, part);
  const int64_t blocks = tasks < device->cube_cores ? tasks : device->cube_cores;
  return TANDEM_LAUNCH(sparse_attn_kernel, blocks, stream, gm_cast<bfloat16_t>(q),
                       gm_cast<uint8_t>(window), gm_cast<int32_t>(window_slots),
                       gm_cast<uint8_t>(main), gm_cast<int32_t>(main_slots), gm_cast<float>(sink),
                       gm_cast<bfloat16_t>(out), uint32_t(T), uint32_t(heads), uint32_t(dim),
                       uint32_t(window_count), uint32_t(main_count), window_format, main_format,
                       scale, part, uint32_t(blocks), uint32_t(device->l0a_bytes));
}
