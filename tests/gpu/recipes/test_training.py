import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model():
    return torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 16)).cuda()


@pytest.mark.cutrace
def test_train_step(gpu_trace, model):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs = torch.randn(64, 256, device="cuda")
    targets = torch.randint(16, (64,), device="cuda")
    losses = []
    for _ in range(3):
        with gpu_trace.region("forward", sync_calls=0):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        with gpu_trace.region("backward", sync_calls=0):
            loss.backward()
        with gpu_trace.region("optimizer", sync_calls=0):
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    assert torch.stack(losses).isfinite().all()  # a single wait, after the loop
