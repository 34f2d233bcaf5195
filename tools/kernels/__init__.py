"""Official shapes of every op, what they cost at least, and what kernels of a backend make of them."""
