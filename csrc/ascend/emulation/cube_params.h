// Parameter structures of the cube's instructions, with the documented fields and defaults.
//
// Written from the public documentation of Ascend C (pages "DataCopy" GM to L1 with ND2NZ and
// DN2NZ, "LoadData" 2D V2 and MX, "Fill", "Mmad", "MmadMx", "Fixpipe", for Ascend 950). Host
// emulation only.
#pragma once

#include <cstdint>

enum QuantMode_t {
  NoQuant = 0,
  F322F16,
  F322BF16,
};

namespace AscendC {

// Row-major matrices in global memory to fractals in L1. For 4-bit types everything counts bytes.
struct Nd2NzParams {
  uint16_t ndNum = 1;
  uint16_t nValue = 0;             // rows
  uint32_t dValue = 0;             // elements of a row that are moved
  uint64_t srcNdMatrixStride = 0;  // elements from matrix to matrix
  uint64_t srcDValue = 0;          // elements from row to row
  uint16_t dstNzC0Stride = 0;      // blocks of 32 bytes from column of fractals to column
  uint16_t dstNzNStride = 0;       // blocks of 32 bytes from row to row
  uint32_t dstNzMatrixStride = 0;  // elements from matrix to matrix
};

// Column-major matrices in global memory to fractals in L1: `nValue` columns, `dValue` rows.
struct Dn2NzParams {
  uint16_t dnNum = 1;
  uint16_t nValue = 0;
  uint32_t dValue = 0;
  uint64_t srcDnMatrixStride = 0;
  uint64_t srcDValue = 0;
  uint16_t dstNzC0Stride = 0;
  uint16_t dstNzNStride = 0;
  uint32_t dstNzMatrixStride = 0;
};

template <typename T>
struct InitConstValueParams {
  uint16_t repeatTimes = 0;
  uint16_t blockNum = 0;  // blocks of 32 bytes in L1
  uint16_t dstGap = 0;    // blocks between the end of a repeat and the next one
  T initValue{};
};

// Fractals of 512 bytes from L1 to L0A or L0B.
struct LoadData2DParamsV2 {
  uint32_t mStartPosition = 0;  // in fractals of 16 rows
  uint32_t kStartPosition = 0;  // in columns of 32 bytes
  uint16_t mStep = 0;
  uint16_t kStep = 0;
  int32_t srcStride = 0;   // fractals from column to column of the source
  uint16_t dstStride = 0;  // the same of the destination
  bool ifTranspose = false;
  uint8_t sid = 0;
};

// Fractals of 16 rows x 2 scales, 32 bytes, from L1 to the scale memory beside L0A or L0B.
struct LoadData2DMxParams {
  uint16_t xStartPosition = 0;  // in fractals of 16 rows
  uint16_t yStartPosition = 0;  // in pairs of scales
  uint8_t xStep = 0;
  uint8_t yStep = 0;
  uint16_t srcStride = 0;  // fractals from one 16 rows to the next
  uint16_t dstStride = 0;
};

struct MmadParams {
  uint16_t m = 0;
  uint16_t n = 0;
  uint16_t k = 0;
  bool isBias = false;
  int32_t fmOffset = 0;
  bool enSsparse = false;
  bool enWinogradA = false;
  bool enWinogradB = false;
  int8_t unitFlag = 0;
  bool kDirectionAlign = false;
  bool cmatrixSource = false;
  bool cmatrixInitVal = true;
  bool disableGemv = false;
};

enum class CO2Layout : uint8_t { NZ = 0, ROW_MAJOR, COLUMN_MAJOR };

struct FixpipeConfig {
  CO2Layout format;
  bool isToUB = false;
};

constexpr FixpipeConfig CFG_NZ = {CO2Layout::NZ, false};
constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR, false};
constexpr FixpipeConfig CFG_COLUMN_MAJOR = {CO2Layout::COLUMN_MAJOR, false};

struct Nz2NdParams {
  uint16_t ndNum = 1;
  uint16_t srcNdStride = 0;  // units of 16 elements of L0C
  uint32_t dstNdStride = 0;  // elements
};

template <CO2Layout format>
struct TransformParams {};
template <>
struct TransformParams<CO2Layout::NZ> {
  using PARAMS = uint8_t;
};
template <>
struct TransformParams<CO2Layout::ROW_MAJOR> {
  using PARAMS = Nz2NdParams;
};

template <CO2Layout format>
struct FixpipeParamsArch3510 {
  uint16_t nSize = 0;
  uint16_t mSize = 0;
  uint16_t srcStride = 0;  // units of 16 elements of L0C from one 16 columns to the next
  uint32_t dstStride = 0;  // elements: of a row (ROW_MAJOR), from one 16 columns to the next (NZ)
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint64_t deqScalar = 0;
  bool reluEn = false;
  uint8_t unitFlag = 0;
  uint8_t dualDstCtl = 0;  // 1: halves of M to the two vector cores, 2: halves of N
  uint8_t subBlockId = 0;
  bool isChannelSplit = false;
  typename TransformParams<format>::PARAMS params{};
};

enum class HF32Mode : uint8_t { DISABLE = 0, ENABLE };

}  // namespace AscendC
