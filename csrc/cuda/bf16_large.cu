#include "bf16_product.cuh"

namespace tandem {

const BatchKernel bf16_large{run_bf16<Bf16Large>, Bf16Large::kSharedBytes};

}  // namespace tandem
