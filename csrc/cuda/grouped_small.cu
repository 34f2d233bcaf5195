#include "grouped_product.cuh"

namespace tandem {

const GroupsKernel grouped_small{run_grouped<GroupedSmall>, grouped_workspace<GroupedSmall>,
                                 GroupedSmall::kSharedBytes};

}  // namespace tandem
