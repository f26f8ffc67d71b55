"""The effects of API functions, by name."""

from __future__ import annotations

import pytest

from cutrace.analysis.calls import finds_variable, launches_graph, loads_code, plain_name, synchronizes


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
    assert synchronizes(name) == synchronizes(plain)


def test_graphs_are_launched_by_functions_of_any_version():
    names = "cudaGraphLaunch cuGraphLaunch cudaGraphLaunch_ptsz_v10000 cudaLaunchKernel cudaGraphInstantiate"
    assert [launches_graph(name) for name in names.split()] == [True, True, True, False, False]


def test_modules_and_libraries_are_loaded_and_searched_by_functions_of_any_version():
    loading = "cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuLibraryLoadFromFile cudaLibraryLoadData"
    searching = "cuModuleGetGlobal_v2 cuLibraryGetGlobal cudaLibraryGetGlobal"
    others = "cuModuleUnload cuModuleGetFunction cuLibraryGetKernel cudaGetSymbolAddress cuModuleGetLoadingMode"
    for name in (loading + " " + searching + " " + others).split():
        assert (loads_code(name), finds_variable(name)) == (name in loading.split(), name in searching.split())


def test_what_waits_for_the_gpu_is_told_by_name():
    waiting = """cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize cuCtxSynchronize_v2
        cuStreamSynchronize_ptsz
        cuEventSynchronize cudaMemcpy cudaMemcpy2D cudaMemcpy3D cudaMemcpyToSymbol cudaMemcpyFromArray cuMemcpy
        cuMemcpyHtoD_v2 cuMemcpyDtoH_v2_ptds cuMemcpyAtoH cuMemcpy3D"""
    others = """cudaMemcpyAsync cuMemcpyDtoHAsync_v2 cudaMemcpyBatchAsync cudaMemcpyPeer cuMemcpyDtoD_v2 cuMemcpyAtoD
        cudaMemcpyArrayToArray cudaMemset cudaFree cudaMalloc cudaHostAlloc cudaStreamWaitEvent cudaEventQuery
        cudaStreamQuery cudaLaunchKernel cudaGraphLaunch"""
    assert [n for n in waiting.split() if not synchronizes(n)] == []
    assert [n for n in others.split() if synchronizes(n)] == []
