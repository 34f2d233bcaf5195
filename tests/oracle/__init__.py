"""A slow, cache-free, full-sequence judge of the V4.1 text model; it shares no code with the engine."""
