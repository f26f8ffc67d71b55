import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def compiled():
    """Compile once. The first run, which is not judged, has the compilation and its benchmarks."""
    return torch.compile(lambda x: torch.nn.functional.gelu(x) * x + 1)


@pytest.mark.cutrace(warmup=1)
def test_activation(gpu_trace, compiled):
    x = torch.randn(128, 512, device="cuda")
    with gpu_trace.region("activation", kernel_launches=1, sync_calls=0):
        y = compiled(x)
    assert y.shape == x.shape
