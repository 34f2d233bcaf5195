#include "mx_product.cuh"

namespace tandem {

const BatchKernel mx_small_f32{run_mx<MxSmall<float>>, MxSmall<float>::kSharedBytes};

}  // namespace tandem
