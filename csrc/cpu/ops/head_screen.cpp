// head_screen: the screen of an output head, see head_greedy.cpp: a copy in fp8, and bounds of what
// its rows are wrong by.
//
//   head    bf16 [V, K]      K up to 2^20
//   codes   u8 [V, K]        out, fp8_block32
//   scales  u8 [ceil(V / 32), ceil(K / 32)]  out, of it
//   bound   f32 [V in whole 64s]             out, 0 behind V
//
// With a the largest |w| of a block, its scale is the least power of two s with a <= 448 s, but at
// least 2^-100. A block with NaN or with numbers for which s would be above 2^100 is left out: its
// codes are 0. The bound of a row with NaN or infinity is infinite. Norms are summed in double.
#include <cmath>

#include "operands.h"
#include "parallel.h"
#include "register_codes.h"

namespace tandem::TANDEM_ISA::ops::head_screen {

constexpr int kBlock = 32;         // rows and columns
constexpr int64_t kWholeIds = 64;  // that readers of bounds take together
constexpr double kUnit = 0x1p-24;  // of a rounding

// Sums of squares of a row, in 16 lanes: lane l adds l, l + 16, ... in order.
struct Squares {
  RegisterF64 lanes[kPartCount] = {};

  TANDEM_INLINE void add(int i, const RegisterF64 &v) { lanes[i % kPartCount] += v * v; }
  double norm() const {
    double s[kLanes], sum = 0.0;
    std::memcpy(s, lanes, sizeof s);
    for (double one : s) sum += one;
    return std::sqrt(sum);
  }
};

// Of a row of the head, of its codes' values, and of what lies between them.
struct Norms {
  Squares own, theirs, apart;

  // See head_greedy.cpp.
  float bound(int64_t K) const {
    const double lost = static_cast<double>(K) * kUnit;
    const double sums = (lost / (1.0 - lost) + 0x1p-20) * (own.norm() + theirs.norm());
    const double bound = (apart.norm() + sums + 0x1p-100) * (1.0 + 0x1p-20);
    return bound <= 0x1p127 ? static_cast<float>(bound) : __builtin_inff();
  }
};

// A block, rows and columns beyond the head's being 0.
struct Block {
  float values[kBlock][kBlock];
  uint8_t codes[kBlock][kBlock];

  void load(const uint16_t *head, int64_t K, int64_t rows, int64_t columns) {
    std::memset(values, 0, sizeof values);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) values[r][c] = widen(head[r * K + c]);
  }

  // Makes the codes and adds to the norms; returns the scale.
  uint8_t encode(Norms *norms) {
    uint32_t top = bits_of(kE4m3Max * 0x1p-100f);
    for (int r = 0; r < kBlock; ++r) {
      Register v[kPer32];
      load_group<kPer32>(values[r], v);
      const uint32_t most = max_magnitude<kPer32>(v);
      top = most > top ? most : top;
    }
    uint8_t scale = power_scale<8, 0x600000u>(top);  // 448 = 1.75 * 2^8
    const bool fits = scale <= kMostScale;
    scale = fits ? scale : static_cast<uint8_t>(kLeastScale);
    const float inverse = inverse_of(scale), step = weight_scale(scale);
    for (int r = 0; r < kBlock; ++r) {
      Register v[kPer32];
      RegisterU32 code[kPer32] = {};
      load_group<kPer32>(values[r], v);
      for (int i = 0; i < kPer32; ++i) {
        if (fits) code[i] = encode_e4m3(v[i] * inverse);
        const RegisterF64 w = __builtin_convertvector(v[i], RegisterF64);
        const RegisterF64 q = __builtin_convertvector(e4m3_values(code[i]) * step, RegisterF64);
        norms[r].own.add(i, w);
        norms[r].theirs.add(i, q);
        norms[r].apart.add(i, w - q);
      }
      store_bytes<kPer32>(codes[r], code);
    }
    return scale;
  }

  void store(uint8_t *to, int64_t K, int64_t rows, int64_t columns) const {
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(to + r * K, codes[r], static_cast<size_t>(columns));
  }
};

int32_t run(const uint16_t *head, uint8_t *codes, uint8_t *scales, float *bound, int64_t V,
            int64_t K) {
  if (V < 1 || K < 1 || K > 1 << 20) return TANDEM_BAD_SHAPE;
  if (!head || !codes || !scales || !bound) return TANDEM_NULL_POINTER;
  const int64_t strips = (V + kBlock - 1) / kBlock, across = (K + kBlock - 1) / kBlock;
  parallel_for(strips, 8 * kBlock * K, [=](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t first = strip * kBlock, rows = V - first < kBlock ? V - first : kBlock;
      Norms norms[kBlock];
      Block block;
      for (int64_t b = 0; b < across; ++b) {
        const int64_t k = b * kBlock, columns = K - k < kBlock ? K - k : kBlock;
        block.load(head + first * K + k, K, rows, columns);
        scales[strip * across + b] = block.encode(norms);
        block.store(codes + first * K + k, K, rows, columns);
      }
      for (int64_t r = 0; r < rows; ++r) bound[first + r] = norms[r].bound(K);
    }
  });
  for (int64_t n = V; n % kWholeIds; ++n) bound[n] = 0.0f;
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::head_screen
