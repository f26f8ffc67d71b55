"""Work of threads that an earlier test left running."""

from __future__ import annotations

from support.suites import Suite

PREFETCH = """
    import queue
    import threading

    JOBS = queue.Queue()

    def work():
        while JOBS.get():
            fakegpu.launch("prefetch")
            JOBS.task_done()

    def test_prefetch():
        threading.Thread(target=work, daemon=True).start()
        JOBS.put(True)
        JOBS.join()

    @pytest.mark.gpu_limit(kernel_launches=1)
    def test_step():
        fakegpu.launch("k")
        for _ in range(2):
            JOBS.put(True)
        JOBS.join()

    @pytest.mark.gpu_limit(kernel_launches=0)
    def test_own_thread():
        thread = threading.Thread(target=fakegpu.launch)
        thread.start()
        thread.join()
"""


def test_a_failure_says_what_threads_of_earlier_tests_did(suite: Suite) -> None:
    suite.write("test_a.py", PREFETCH)
    done = suite.run("--cutrace")
    assert done.failed == {"test_step", "test_own_thread"}
    told = "threads that started in test_a.py::test_prefetch launched 2 of 3 kernels, copies and fills"
    assert told in done.case("test_step").notes
    assert told in done.output
    assert done.output.count("threads that started in") == 1
    assert done.case("test_step").values["kernels"] == {"k": 1, "prefetch": 2}, "the work counts where it is launched"
