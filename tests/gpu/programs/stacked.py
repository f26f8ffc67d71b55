"""Launches kernels one by one, and prints the Python stacks of the launches by thread, outermost frame first. The main
thread comes first.

The program's own launches are single kernels of `x.add_(1)`, on a line with a call of `here()`. Autograd, optimizers
and copies launch other kernels.
"""

import json
import sys
import threading

import torch
from torch.utils.checkpoint import checkpoint

NAME = "co_qualname" if sys.version_info >= (3, 11) else "co_name"
said: dict[int, list] = {}
torch.cuda.init()
x = torch.zeros(1024, device="cuda")
torch.cuda.synchronize()


def here() -> None:
    frame, rows = sys._getframe(1), []
    while frame is not None:
        rows.append((frame.f_code.co_filename, getattr(frame.f_code, NAME), frame.f_lineno))
        frame = frame.f_back
    said.setdefault(threading.get_native_id(), []).append(rows[::-1])


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        x.add_(1), here()
        return value * 2

    @staticmethod
    def backward(ctx, gradient):
        x.add_(1), here()
        return gradient * 2


class Block(torch.nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.inner = Block(depth - 1) if depth else None

    def forward(self, value):
        x.add_(1), here()
        value = Scale.apply(self.linear(value))
        return self.inner(value) if self.inner is not None else value


def numbers():
    for i in range(3):
        x.add_(1), here()
        yield i


def work() -> None:
    list(numbers())
    (lambda: (x.add_(1), here()))()
    exec(compile("x.add_(1), here()", "<made>", "exec"))
    exec("\n" * 300 + "def late(): x.add_(1), here()\nlate()", dict(globals()))


def train() -> None:
    model = Block(3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.linear.weight.register_hook(lambda gradient: (x.add_(1), here(), None)[2])
    for step in range(4):
        batch = torch.ones(4, 8, device="cuda", requires_grad=True)
        value = checkpoint(model, batch, use_reentrant=True) if step == 2 else model(batch)
        value.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


work()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
train()
waited = []
for _ in range(3):
    waited.append(sys._getframe().f_lineno + 1)
    x.sum().item()
print(json.dumps({"said": said, "waited": waited}))
