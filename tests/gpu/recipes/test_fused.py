import pytest

cupy = pytest.importorskip("cupy")


@cupy.fuse()
def squared_difference(x, y):
    return (x - y) * (x - y)


@pytest.mark.cutrace
def test_squared_difference(gpu_trace):
    x = cupy.arange(4096, dtype=cupy.float32)
    y = cupy.ones_like(x)
    squared_difference(x, y)  # the first call compiles, and may keep memory of the pool
    with gpu_trace.region("difference", kernel_launches=1, allocations=0):
        z = squared_difference(x, y)
    assert float(z[3]) == 4
