"""Hardware metrics of GPUs: what a chip counts, and counting it in ranges, in samples and for chosen kernels."""
