/* Adds up a part of a buffer that begins on 64 bytes; bytes beyond a multiple of 256 are left out.

   Four sums that do not wait for each other: what remains is the time that bytes take into
   registers.  Prefetching and reading two places at once were tried and are no faster. */
#include <stddef.h>
#include <stdint.h>

typedef uint64_t line_t __attribute__((vector_size(64)));

uint64_t stream_sum(const void *data, size_t bytes) {
  const line_t *at = data, *end = at + bytes / (4 * sizeof(line_t)) * 4;
  line_t a = {0}, b = a, c = a, d = a;
  for (; at < end; at += 4) {
    a += at[0];
    b += at[1];
    c += at[2];
    d += at[3];
  }
  a += b + (c + d);
  uint64_t total = 0;
  for (int i = 0; i < 8; i++) total += a[i];
  return total;
}
