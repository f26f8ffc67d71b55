import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
from triton import language as tl  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def first_configuration():
    """Let autotuned kernels run their first configuration, because measurements could select another configuration on
    each machine."""
    tuned = Autotuner.run

    def run(self, *args, **kwargs):
        self.configs = self.configs[:1]
        return tuned(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Autotuner, "run", run)
        yield


@triton.autotune([triton.Config({"BLOCK": 1024}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def scale_kernel(x, out, factor, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=inside) * factor, mask=inside)


@pytest.mark.cutrace
def test_scale(gpu_trace):
    x = torch.arange(5000, device="cuda", dtype=torch.float32)
    out = torch.empty_like(x)
    with gpu_trace.region("scale", kernel_launches=1, sync_calls=0):
        scale_kernel[lambda meta: (triton.cdiv(5000, meta["BLOCK"]),)](x, out, 3.0, 5000)
    assert torch.equal(out, 3 * x)
