"""A process that meets others and says what becomes of them, without TensorFlow.

    python peer_process.py RANK PEER_TIMEOUT START_TIMEOUT HOST:PORT...

It prints "met"; then it does what it reads, a word a line, until its input ends:
"gather", "stop", "bye", "refuse", "fail". It prints who was asked to stop, and what
it gathers.
"""

import sys

from tf_goyal import peers


def main() -> None:
    rank, peer_timeout, start_timeout, *workers = sys.argv[1:]
    others = peers.meet(
        workers,
        int(rank),
        token=b"0123456789abcdef",
        start_timeout=float(start_timeout),
        peer_timeout=float(peer_timeout),
    )
    others.stopped = lambda who: print(f"stopped by {who}", flush=True)
    with others:
        print("met", flush=True)
        for word in sys.stdin:
            match word.strip():
                case "gather":
                    print("gathered", others.gather(f"from {rank}"), flush=True)
                case "stop":
                    others.ask_to_stop()
                case "refuse":
                    raise ValueError("of no wish to go on")
                case "fail":
                    others.tell_failed("no record is good")
                case "bye":
                    break
    print("end", flush=True)


if __name__ == "__main__":
    main()
