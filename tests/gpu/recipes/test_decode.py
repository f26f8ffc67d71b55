import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model():
    return torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 1000)).cuda()


@pytest.mark.cutrace
@torch.inference_mode()
def test_decode(gpu_trace, model):
    token = torch.randint(1000, (8,), device="cuda")
    tokens = []
    with gpu_trace.region("decode", sync_calls=0, pageable_copies=0):
        for _ in range(16):
            token = model(token).argmax(-1)
            tokens.append(token)
    assert torch.stack(tokens).cpu().shape == (16, 8)  # the wait that is wanted
