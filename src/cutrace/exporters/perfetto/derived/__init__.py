"""What follows from records: NVTX ranges on streams, counters, and which work waited for which."""
