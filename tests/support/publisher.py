"""A publisher of KV cache events on the real ZeroMQ library, told by lines on its standard input what to do.

Arguments: SIDE ADDRESS FRAMES REPLAY, with SIDE bind or connect, FRAMES 2 or 3: those of a replayed batch, and REPLAY
the port of the replay, 0 for a free one.
It says "pub PORT" and "replay PORT", then one line for each command, and "subscribed" or "asked SEQ" when that happens.

    batch SEQ HEX   makes a batch: keeps it for replay and publishes it
    hide SEQ HEX    makes a batch that is kept for replay and not published
    skip SEQ HEX    makes a batch that is published and not kept
    raw HEX ...     publishes these frames
    lose SEQ        leaves this batch out of the next replay, as a full queue does
"""

import os
import sys

import zmq


def say(*words):
    print(*words, flush=True)


def main(side, address, frames, replay):
    context = zmq.Context()
    # XPUB is PUB with subscriptions that can be seen.
    pub = context.socket(zmq.XPUB)
    pub.setsockopt(zmq.LINGER, 0)
    # Subscriptions that somebody has already, too.
    pub.setsockopt(zmq.XPUB_VERBOSE, 1)
    if side == "bind":
        pub.bind(address)
    else:
        pub.connect(address)
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, 0)
    router.bind(f"tcp://127.0.0.1:{replay}")
    end = lambda socket: socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0").rsplit(":", 1)[1]
    say("pub", end(pub) if side == "bind" else 0)
    say("replay", end(router))
    kept, lost = [], set()
    poller = zmq.Poller()
    for what in (pub, router, sys.stdin.fileno()):
        poller.register(what, zmq.POLLIN)
    rest = b""
    while True:
        ready = dict(poller.poll())
        if pub in ready:
            if pub.recv()[:1] == b"\x01":
                say("subscribed")
        if router in ready:
            identity, empty, start = router.recv_multipart()
            start = int.from_bytes(start, "big")
            say("asked", start)
            for seq, payload in kept:
                if seq >= start and seq not in lost:
                    body = [seq.to_bytes(8, "big"), payload]
                    router.send_multipart([identity, b"", *([b"kv"] if frames == 3 else []), *body])
            lost.clear()
            last = [(-1).to_bytes(8, "big", signed=True), b""]
            router.send_multipart([identity, b"", *([b""] if frames == 3 else []), *last])
        if sys.stdin.fileno() in ready:
            read = os.read(sys.stdin.fileno(), 1 << 20)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                command, *words = line.decode().split(" ")
                if command == "raw":
                    pub.send_multipart([bytes.fromhex(word) for word in words])
                elif command == "lose":
                    lost.add(int(words[0]))
                else:
                    seq, payload = int(words[0]), bytes.fromhex(words[1])
                    if command != "skip":
                        kept.append((seq, payload))
                    if command != "hide":
                        pub.send_multipart([b"kv", seq.to_bytes(8, "big"), payload])
                say("done", command)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
