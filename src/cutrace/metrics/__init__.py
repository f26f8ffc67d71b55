"""Hardware metrics of GPUs: the metrics of a chip, counted over ranges, sampled over time, or counted for kernels."""
