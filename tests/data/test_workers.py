import signal

from rn50.data.workers import worker_pool


def test_workers_leave_ctrl_c_to_their_parent() -> None:
    """One that it interrupts while it takes or gives work would never end."""
    with worker_pool(1) as pool:
        handler = pool.submit(signal.getsignal, signal.SIGINT).result()
    assert handler == signal.SIG_IGN
