"""Classes of API functions, by name."""

from __future__ import annotations

import pytest

from cutrace.analysis.calls import CallClass, classify, plain_name, synchronizes


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel"),
        ("cudaMemcpy_ptds_v7000", "cudaMemcpy"),
        ("cuMemcpyDtoH_v2", "cuMemcpyDtoH"),
        ("cuMemcpyDtoH_v2_ptds", "cuMemcpyDtoH"),
        ("cudaStreamSynchronize", "cudaStreamSynchronize"),
        ("cudaMemcpy2D", "cudaMemcpy2D"),
        ("", ""),
    ],
)
def test_suffixes_of_versions_and_streams_fold(name, plain):
    assert plain_name(name) == plain
    assert classify(name) is classify(plain)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (CallClass.LAUNCH, "cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernel cuLaunchKernelEx __cudaLaunchKernel"),
        (CallClass.GRAPH_LAUNCH, "cudaGraphLaunch cuGraphLaunch cudaGraphLaunch_ptsz_v10000"),
        (CallClass.SYNCHRONIZE, "cudaDeviceSynchronize cudaStreamSynchronize_ptsz cuCtxSynchronize_v2"),
        (CallClass.COPY, "cudaMemcpy cudaMemcpyAsync cuMemcpyHtoD_v2 cudaMemcpyPeerAsync cudaMemcpyToSymbol"),
        (CallClass.FILL, "cudaMemset cudaMemsetAsync cuMemsetD32Async cuMemsetD2D8"),
        (CallClass.ALLOCATE, "cudaMalloc cudaMallocAsync cudaHostAlloc cuMemAlloc_v2 cuMemAllocFromPoolAsync"),
        (CallClass.ALLOCATE, "cuMemCreate"),
        (CallClass.FREE, "cudaFree cudaFreeAsync cudaFreeHost cuMemFree_v2 cuMemRelease"),
        (CallClass.OTHER, "cudaGetDevice cuModuleLoadData cudaLaunchHostFunc cudaGraphInstantiate cuMemPoolCreate"),
    ],
)  # fmt: skip
def test_each_function_is_in_the_class_of_its_family(call, names):
    assert {name: classify(name) for name in names.split()} == dict.fromkeys(names.split(), call)


def test_what_waits_for_the_gpu_is_told_by_name():
    waiting = """cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize cuCtxSynchronize cuStreamSynchronize
        cuEventSynchronize cudaMemcpy cudaMemcpy2D cudaMemcpy3D cudaMemcpyToSymbol cudaMemcpyFromArray cuMemcpy
        cuMemcpyHtoD_v2 cuMemcpyDtoH_v2_ptds cuMemcpyAtoH cuMemcpy3D"""
    others = """cudaMemcpyAsync cuMemcpyDtoHAsync_v2 cudaMemcpyBatchAsync cudaMemcpyPeer cuMemcpyDtoD_v2 cuMemcpyAtoD
        cudaMemcpyArrayToArray cudaMemset cudaFree cudaMalloc cudaHostAlloc cudaStreamWaitEvent cudaEventQuery
        cudaStreamQuery cudaLaunchKernel cudaGraphLaunch"""
    assert [n for n in waiting.split() if not synchronizes(n)] == []
    assert [n for n in others.split() if synchronizes(n)] == []
