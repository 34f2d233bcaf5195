#include "mx_product.cuh"

namespace tandem {

const BatchKernel mx_large_bf16{run_mx<MxLarge<cutlass::bfloat16_t>>,
                                MxLarge<cutlass::bfloat16_t>::kSharedBytes};

}  // namespace tandem
