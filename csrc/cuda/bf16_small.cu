#include "bf16_product.cuh"

namespace tandem {

const BatchKernel bf16_small{run_bf16<Bf16Small>, Bf16Small::kSharedBytes};

}  // namespace tandem
