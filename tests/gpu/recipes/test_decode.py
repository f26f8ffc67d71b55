import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model():
    return torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 1000)).cuda()


def finished(token):
    return bool((token == 0).all())


@pytest.mark.cutrace
@torch.inference_mode()
def test_decode(gpu_trace, model):
    token = torch.randint(1000, (8,), device="cuda")
    allowed = {"allow": ["*test_decode.py:finished"], "reason": "the stop condition, once in eight steps"}
    with gpu_trace.region("decode", sync_calls=0, pageable_copies=0, **allowed):
        for step in range(16):
            token = model(token).argmax(-1)
            if step % 8 == 7 and finished(token):
                break
    assert token.shape == (8,)
