"""In place of the process of a fleet: acts by the name of the fleet."""

import os
import signal
import sys
import time


def main():
    fleet = sys.argv[3]
    print("environment", os.environ.get("CUDA_VISIBLE_DEVICES"), *sys.argv[4:], flush=True)
    if fleet.startswith("fails"):
        print("Traceback (most recent call last):\nValueError: no such joint\n" + "-" * 20)
        sys.exit(1)
    if fleet.startswith("quiet"):
        sys.exit(5)
    if fleet.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if fleet.startswith("waits"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        os.fork()  # as an environment worker, in the same session
        for _ in range(10_000):  # a signal just before a sleep is handled after it
            time.sleep(0.01)


if __name__ == "__main__":
    main()
