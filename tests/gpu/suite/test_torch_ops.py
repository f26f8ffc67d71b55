"""PyTorch: the launches, copies and waits of a few operations."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.cutrace(warmup=1)


@pytest.fixture(scope="module")
def numbers() -> Any:
    generator = torch.Generator(device="cuda").manual_seed(0)
    return torch.randn(256, 1024, device="cuda", generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_softmax(numbers: Any, dtype: Any) -> None:
    out = torch.softmax(numbers.to(dtype), dim=-1)
    assert torch.allclose(out.float().sum(-1), torch.ones(256, device="cuda"), atol=1e-2)


@pytest.fixture(scope="class")
def layer() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(1024, 512, device="cuda")


class TestLinear:
    def test_forward(self, numbers: Any, layer: Any) -> None:
        with torch.no_grad():
            assert layer(numbers).shape == (256, 512)

    def test_training_step(self, numbers: Any, layer: Any, gpu_trace: Any) -> None:
        layer.zero_grad(set_to_none=True)
        with gpu_trace.region("forward"):
            loss = layer(numbers).square().mean()
        with gpu_trace.region("backward"):
            loss.backward()
        assert layer.weight.grad is not None


def test_item_waits_once(numbers: Any) -> None:
    assert numbers.sum().item() == pytest.approx(numbers.cpu().sum().item(), abs=1)


def test_copies_of_pinned_memory() -> None:
    host = torch.ones(1 << 16, pin_memory=True)
    device = host.to("cuda", non_blocking=True)
    assert float(device.to("cpu").sum()) == 1 << 16


def test_two_streams(numbers: Any) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        doubled = numbers * 2
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(doubled, numbers + numbers)


def test_a_graph_is_replayed_three_times() -> None:
    static = torch.zeros(4096, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static += 1
        static *= 2
    for _ in range(3):
        graph.replay()
    assert float(static[0]) == 14
