// The cube's instructions on bytes: what the templates of cube.h call once types are known.
//
// Fractals are 16 rows x 32 bytes, 512 bytes in one piece; those of L0C are 16 x 16 numbers of 4
// bytes. L1, L0A (Nz) and L0B (Zn, of the transposed matrix the same bytes as Nz) hold columns of
// fractals: byte b of row r of a matrix with M fractals in a column is at ((b / 32) * M + r / 16) *
// 512 + (r % 16) * 32 + b % 32, in which r runs through without a break.
#pragma once

#include <cstdint>

#include "cube_params.h"
#include "tensor.h"

namespace tandem::emulation {

constexpr uint32_t kBlock = 32, kFractal = 512, kRows = 16, kScaleFractal = 32;

enum class CubeNumber : uint8_t { f32, f16, bf16, e4m3, e5m2, e2m1, e1m2 };

// `access_of` within a tensor's buffer, in the memory of another core of the block.
inline uint8_t *touch_of(Core &owner, const LocalPlace &place, uint64_t offset, uint64_t bytes,
                         const Operand &operand) {
  const uint64_t first = place.offset + offset;
  if (first + bytes > place.end)
    fail_outside(place.space(), static_cast<uint32_t>(first), bytes, place.begin, place.end,
                 operand.what);
  return access_of(owner, place.space(), first, bytes, operand);
}

// DataCopy with a change of layout, GM to L1. `size` is the bytes of an element.
void nd_to_nz(const LocalPlace &dst, const GlobalPlace &src, uint32_t size,
              const AscendC::Nd2NzParams &params);
void dn_to_nz(const LocalPlace &dst, const GlobalPlace &src, uint32_t size,
              const AscendC::Dn2NzParams &params);

// Fill of L1 with a pattern of `size` bytes.
void fill_l1(const LocalPlace &dst, uint32_t size, uint32_t pattern, uint32_t repeats,
             uint32_t blocks, uint32_t gap);

// UB of this vector core to L1 of its cube core, blocks of 32 bytes.
void ub_to_l1(const LocalPlace &dst, const LocalPlace &src, uint32_t count, uint32_t length,
              uint32_t src_gap, uint32_t dst_gap);

// LoadData: L1 to L0A or L0B, and the scales beside them. `size` is the bytes of an element.
void load_matrix(const LocalPlace &dst, const LocalPlace &src, uint32_t size,
                 const AscendC::LoadData2DParamsV2 &params);
void load_scales(const LocalPlace &dst, const LocalPlace &src,
                 const AscendC::LoadData2DMxParams &params);

// Mmad and MmadMx: L0A times L0B to L0C.
void multiply(const LocalPlace &c, const LocalPlace &a, CubeNumber a_type, const LocalPlace &b,
              CubeNumber b_type, bool scaled, const AscendC::MmadParams &params);

// What Fixpipe moves, in numbers of L0C.
struct FixpipeShape {
  uint32_t columns, rows;
  uint32_t src_stride;  // rows of 64 bytes from one 16 columns to the next
  uint64_t dst_stride;  // elements
  uint32_t matrices;
  uint32_t src_matrix;  // rows of 64 bytes
  uint64_t dst_matrix;  // elements
  bool row_major;
  bool to_bfloat16;
};

// L0C to global memory, or to the UB of one or both vector cores of the block.
void fixpipe_to_gm(const GlobalPlace &dst, const LocalPlace &src, const FixpipeShape &shape);
void fixpipe_to_ub(const LocalPlace &dst, const LocalPlace &src, const FixpipeShape &shape,
                   uint32_t dual, uint32_t sub_block);

}  // namespace tandem::emulation
