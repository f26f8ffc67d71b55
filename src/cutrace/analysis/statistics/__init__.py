"""The statistics of the core, in one module for each family. A module has the collections and the columns of the
reports."""

from __future__ import annotations

from ..statistic import Statistic
from . import (
    api,
    copies,
    counters,
    gpus,
    graphs,
    host,
    kernels,
    launches,
    listings,
    memory,
    nccl,
    nvtx,
    stacks,
    steps,
    streams,
)

#: The statistics, in the order of the reports.
STATISTICS: tuple[Statistic, ...] = (
    gpus.GPU_SUM,
    streams.STREAM_SUM,
    streams.IDLE_SUM,
    gpus.OVERLAP_SUM,
    streams.QUEUE_SUM,
    launches.LAUNCH_SUM,
    kernels.CUDA_GPU_KERN_SUM,
    kernels.CUDA_GPU_KERN_GB_SUM,
    kernels.SHORT_KERN_SUM,
    api.CUDA_API_SUM,
    launches.CUDA_KERN_EXEC_SUM,
    copies.CUDA_GPU_MEM_TIME_SUM,
    copies.CUDA_GPU_MEM_SIZE_SUM,
    copies.COPY_SIZE_SUM,
    gpus.CUDA_GPU_SUM,
    graphs.GRAPH_SUM,
    graphs.GRAPH_RANGE_SUM,
    stacks.STACK_SUM,
    api.SYNC_SUM,
    nvtx.NVTX_SUM,
    nvtx.NVTX_GPU_SHARE,
    nvtx.NVTX_GPU_PROJ_SUM,
    nvtx.NVTX_KERN_SUM,
    steps.STEP_SUM,
    steps.STEP_ENERGY_SUM,
    nccl.NCCL_SUM,
    host.HOST_SUM,
    host.OSRT_SUM,
    host.GPU_SLICE_SUM,
    copies.UM_SUM,
    memory.MEMORY_SUM,
    counters.COUNTER_SUM,
    api.OVERHEAD_SUM,
    listings.CUDA_GPU_TRACE,
    listings.CUDA_API_TRACE,
    listings.CUDA_KERN_EXEC_TRACE,
    steps.STEP_TRACE,
)
