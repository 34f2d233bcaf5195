// Rows on their way through UB by copies alone, and the numbers that say which rows.
#pragma once

#include "_rows.h"

// Bytes of UB that a window of numbers takes.
constexpr uint32_t kWindowBytes = 8192;

// An int32 array in global memory whose elements the scalar unit reads in ascending order: windows
// of it lie in UB.
class Numbers {
 public:
  __aicore__ inline void init(AscendC::TPipe &pipe, Gm<int32_t> from, int64_t count) {
    from_.SetGlobalBuffer(from);
    count_ = count;
    pipe.InitBuffer(window_, kWindowBytes);
  }

  __aicore__ inline int32_t at(int64_t index) {
    if (index >= end_) hold(index);
    return window_.Get<int32_t>().GetValue(uint32_t(index - begin_));
  }

 private:
  AscendC::GlobalTensor<int32_t> from_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> window_;
  int64_t count_ = 0, begin_ = 0, end_ = 0;

  __aicore__ inline void hold(int64_t index) {
    using namespace AscendC;
    const int64_t most = kWindowBytes / sizeof(int32_t), left = count_ - index;
    begin_ = index;
    end_ = index + (left < most ? left : most);
    TPipe &pipe = *GetTPipePtr();
    const TEventID read = pipe.FetchEventID<HardEvent::S_MTE2>();
    SetFlag<HardEvent::S_MTE2>(read);
    WaitFlag<HardEvent::S_MTE2>(read);
    DataCopyPad(window_.Get<int32_t>(), from_[index],
                {1, uint32_t((end_ - begin_) * sizeof(int32_t)), 0, 0, 0},
                DataCopyPadExtParams<int32_t>{});
    const TEventID filled = pipe.FetchEventID<HardEvent::MTE2_S>();
    SetFlag<HardEvent::MTE2_S>(filled);
    WaitFlag<HardEvent::MTE2_S>(filled);
  }
};

// Pieces of rows that go from one place of global memory to another as they are.
class Mover {
 public:
  static constexpr uint32_t kUnderWay = 4;  // pieces that UB holds

  __aicore__ inline void init(AscendC::TPipe &pipe, uint32_t piece) {
    pipe.InitBuffer(queue_, kUnderWay, piece);
  }

  __aicore__ inline void move(const AscendC::GlobalTensor<uint8_t> &to,
                              const AscendC::GlobalTensor<uint8_t> &from, uint32_t bytes) {
    using namespace AscendC;
    const DataCopyExtParams block{1, bytes, 0, 0, 0};
    LocalTensor<uint8_t> piece = queue_.AllocTensor<uint8_t>();
    DataCopyPad(piece, from, block, DataCopyPadExtParams<uint8_t>{});
    queue_.EnQue(piece);
    piece = queue_.DeQue<uint8_t>();
    DataCopyPad(to, piece, block);
    queue_.FreeTensor(piece);
  }

 private:
  AscendC::TQueBind<AscendC::TPosition::VECIN, AscendC::TPosition::VECOUT, 1> queue_;
};

// Pieces of rows, dealt to blocks in contiguous shares.
struct Pieces {
  int64_t rows, bytes;  // bytes of a row
  int64_t piece;        // bytes of a piece but the last of a row, a multiple of 32

  // Of a row.
  TANDEM_SHARED constexpr int64_t count() const { return (bytes + piece - 1) / piece; }
  TANDEM_SHARED constexpr int64_t begin(int64_t block, int64_t blocks) const {
    return rows * count() * block / blocks;
  }
  TANDEM_SHARED constexpr int64_t row(int64_t task) const { return task / count(); }
  // First byte of a piece within its row, and how many there are.
  TANDEM_SHARED constexpr int64_t first(int64_t task) const { return task % count() * piece; }
  TANDEM_SHARED constexpr uint32_t size(int64_t task) const {
    const int64_t left = bytes - first(task);
    return uint32_t(left < piece ? left : piece);
  }
};

// Whether UB has `room` bytes for each byte of a piece, and `beside`.
inline int32_t check_pieces(const tandem_ascend_device *device, const Pieces &pieces, int64_t room,
                            int64_t beside) {
  if (pieces.rows < 0 || pieces.bytes <= 0 || pieces.piece <= 0 || pieces.piece % 32 != 0)
    return TANDEM_BAD_VALUE;
  return rows::fits(device, pieces.piece * room + beside) ? TANDEM_OK : TANDEM_TOO_LARGE;
}

inline int64_t piece_blocks(const tandem_ascend_device *device, const Pieces &pieces) {
  return rows::row_blocks(device, pieces.rows * pieces.count());
}
