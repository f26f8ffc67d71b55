"""Data derived from records: NVTX ranges on streams, counters, launches and waits."""
