/* Reads a buffer and adds it up: no faster way to get bytes into registers is known to this compiler. */
#include <stdint.h>
#include <stddef.h>

uint64_t stream_sum(const uint64_t *data, size_t count, int threads) {
    uint64_t total = 0;
#pragma omp parallel for simd reduction(+ : total) num_threads(threads) schedule(static)
    for (size_t i = 0; i < count; i++) total += data[i];
    return total;
}
