#include "grouped_product.cuh"

namespace tandem {

const GroupsKernel grouped_large{run_grouped<GroupedLarge>, grouped_workspace<GroupedLarge>,
                                 GroupedLarge::kSharedBytes};

}  // namespace tandem
