#include "mx_product.cuh"

namespace tandem {

const BatchKernel mx_large_f32{run_mx<MxLarge<float>>, MxLarge<float>::kSharedBytes};

}  // namespace tandem
