#include "mx_product.cuh"

namespace tandem {

const BatchKernel mx_small_bf16{run_mx<MxSmall<cutlass::bfloat16_t>>,
                                MxSmall<cutlass::bfloat16_t>::kSharedBytes};

}  // namespace tandem
