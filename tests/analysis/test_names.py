"""Stable names of kernels: the folded parts, the kept parts, and idempotent folding."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import cutrace
from cutrace.analysis.names import UNKNOWN, normalize_kernel

DATA = Path(__file__).parents[1] / "data"

# Each line: a name from a library, and its stable name.
REAL = {
    # Mangled C++: parameters, template arguments, anonymous namespaces.
    "_Z7softmaxPf": "softmax",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_":
        "at::native::vectorized_elementwise_kernel",
    "_ZN39_GLOBAL__N__87c2daa4_10_streams_cu_main9templatedIfLi3EEEvPT_i": "templated",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<1>, std::plus<float>, float>(at::native::(anonymous namespace)::TensorListMetadata<1>, float)":
        "at::native::multi_tensor_apply_kernel",
    "ns::{lambda(int)#1}::operator()(int) const": "ns::{lambda(int)#1}::operator()",
    "void at::native::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&)::"
    "{lambda()#1}::operator()() const::{lambda(long)#1}>(int, at::native::{lambda(long)#1}, long*)":
        "at::native::elementwise_kernel_with_index",
    "elementwise_kernel_with_index": "elementwise_kernel_with_index",
    "void vector_fft<4096u, EPT<16u>, 64u>(kernel_arguments_t<unsigned int>)": "vector_fft",
    # Kernels of static functions, as nvcc names them in relocatable code, and clones by compilers.
    "__nv_static_23__32b2a0ba_5_st_cu_plain__Z4statPi": "stat",
    "__nv_static_23__32b2a0ba_5_st_cu_plain__Z5tstatIZ2govEUliE_EvT_": "tstat",
    "__nv_static_23__32b2a0ba_5_st_cu_plain__ZN34_GLOBAL__N__32b2a0ba_5_st_cu_plain4anonEPi": "anon",
    "_INTERNAL_52_tmpxft_00001a2b_00000000_7_foo_cpp1_ii_1234abcd::scale(float*)": "scale",
    "_Z1fv.constprop.0": "f",
    "f() [clone .constprop.0]": "f",
    # Wrappers keep the kernel that they run, because it names the algorithm.
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>"
    "(cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4::Params)":
        "cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_256x64_32x4_nhwc_align8>(X::Params)":
        "cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_256x64_32x4_nhwc_align8>",
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<cute::tuple<cute::C<1> > > > >(P)":
        "cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90>>",
    "void thrust::THRUST_200700_800_NS::cuda_cub::core::_kernel_agent<thrust::THRUST_200700_800_NS::cuda_cub::"
    "__parallel_for::ParallelForAgent<thrust::cuda_cub::__fill::functor<float*, float>, long>, long>(long)":
        "thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent>",
    "void cub::CUB_200700_800_900_NS::DeviceReduceKernel<cub::CUB_200700_800_900_NS::Policy600, float*>(float*, int)":
        "cub::DeviceReduceKernel",
    # Names of cuBLAS and cuDNN contain the algorithm.
    "ampere_sgemm_128x64_tn": "ampere_sgemm_128x64_tn",
    "nvjet_hsh_128x192_64x4_1x2_h_bz_coopB_TNT": "nvjet_hsh_128x192_64x4_1x2_h_bz_coopB_TNT",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_"
    "cublas":
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__"
        "5x_cublas",
    "void gemmSN_NN_kernel<float, 128, 2, 4, cublasGemvTensorStridedBatched<float const> >(cublasGemmParams<int>)":
        "gemmSN_NN_kernel",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)":
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    # Code generators: sequence numbers, types, hashes.
    "triton_poi_fused_add_relu_3": "triton_poi_fused_add_relu",
    "triton_per_fused__softmax_12": "triton_per_fused__softmax",
    "triton_red_fused_0": "triton_red_fused",
    "kernel_0d1d2d3de4e5c6c": "kernel",
    "matmul_kernel_0d1d2d3de4de5de6de7c8de9c10de11c": "matmul_kernel",
    "cupy_add__float32_float32_float32": "cupy_add",
    "cupy_where__bool_float64_float64_float64": "cupy_where",
    "cupy_scan_naive": "cupy_scan_naive",
    "_capacity_high_water_1b6d14b0_cuda_kernel_forward": "_capacity_high_water_cuda_kernel_forward",
    "nvfuser_pointwise_f1_c1_r0_g0": "nvfuser_pointwise",
    "_ZN6cudapy8__main__3addB2v1B4cw51E5ArrayIfLi1E1C7mutable7alignedE": "cudapy::__main__::add",
    "fused_norm_9f86d081884c7d659a2feaa0c55ad015": "fused_norm",
    # Types that hold comparisons, operators as arguments, conditional return types.
    "void f<(3)<(4)>(int)": "f",
    "void k<&(a::operator-><int>), (1)>(int)": "k",
    "std::enable_if<!(false), void>::type ns::kernel<float, 4>(float*)": "ns::kernel",
    "ns::Functor::operator()(int) const": "ns::Functor::operator()",
}  # fmt: skip


@pytest.mark.parametrize("name", REAL, ids=range(len(REAL)))
def test_names_of_real_libraries(name):
    assert normalize_kernel(name) == REAL[name]


@pytest.mark.parametrize(
    "name",
    [
        "f",  # a C kernel; as a mangled type it would be float
        "gemm_0123",  # digits alone are not Triton's arguments
        "conv_3",
        "step_0",
        "kernel_1d2d",  # Triton counts from 0
        "triton_fused_norm_2",  # a kernel of a user; Inductor's have a kind in the name
        "a < b",
        "broken<int",
        "_Z9short",
        "deadbeef_kernel_12345678",
        "my kernel",
        "{lambda(int)#1}",
    ],
)
def test_what_nobody_generated_stays_as_it_is(name):
    assert normalize_kernel(name) == name


def test_kernels_without_a_name_have_one_in_tables():
    assert normalize_kernel("") == normalize_kernel("  ") == normalize_kernel(UNKNOWN) == UNKNOWN


@pytest.mark.parametrize("capture", sorted(p.name for p in DATA.glob("*.bin")))
def test_names_of_real_captures_fold_to_words(capture):
    with cutrace.load(DATA / capture) as trace:
        names = {trace.strings[i] for i in trace.launches["name"][1:].tolist()}
    for name in names:
        folded = normalize_kernel(name)
        assert folded == normalize_kernel(folded)
        assert "(" not in folded
        assert "_GLOBAL__N_" not in folded
        assert not folded.startswith(("_Z", "void "))
        assert "<" not in folded or "cutlass::Kernel2<cutlass_80" in folded


# Pieces of names, which are joined in any order. Most results are not valid names.
PIECES = [
    *(
        "a",
        "kernel",
        "_Z1fv",
        "::",
        "<",
        ">",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ",",
        " ",
        "void ",
        "operator()",
        "operator<",
    ),
    *("(anonymous namespace)", " const", "_3", "_0d1c", "triton_poi_fused", "cupy_", "__float32", "$1", ".constprop.0"),
    *("cutlass::Kernel2", "->", "__nv_static_3_", "_INTERNAL_x", "__1", "_0123456789abcdef0", "::type "),
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=30))
@example("void void f")
@example("void void $1")
@example("__nv_static_99999999999999_x")
def test_folding_a_folded_name_changes_nothing(name):
    folded = normalize_kernel(name)
    assert folded
    assert normalize_kernel(folded) == folded


WORDS = st.from_regex(r"[a-z][a-z_]{0,8}[a-z]", fullmatch=True).filter(lambda w: w not in ("operator", "void"))
TYPES = st.sampled_from(
    ["int", "float const*", "std::array<char*, 2ul>", "4", "(3)<(4)", "a::{lambda(int)#1}", "(int*)0"]
)


@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(TYPES, max_size=3), st.lists(TYPES, max_size=3))
def test_functions_of_different_names_are_never_one(path, template, parameters):
    arguments = f"<{', '.join(template)}>" if template else ""
    name = f"{'void ' if template else ''}{'::'.join(path)}{arguments}({', '.join(parameters)})"
    assert normalize_kernel(name) == "::".join(path)
