#!/usr/bin/env python3
"""Drives a real engine and three exporters through the phases in which residency can go wrong, and records every scrape.

    drive.py ENGINE_DIR FORM OUT --exporter target/release/kvtier-exporter [--serve engine/serve.sh] [--phases a,b,...]

Exporters: A follows no events, B follows events and their replay, C follows events only. Twice a second each of them is
scraped, and OUT/scrapes.jsonl.gz gets what it said of the tier, with the times at which the scrape began and ended. The
engine writes what its tier manager really holds to OUT/trace.pid*; compare.py holds the one against the other.

Everything listens on loopback and is ended by its pid. Ports from --port on: engine, events, replay, A, B, C.
"""

import argparse
import gzip
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORDS = ("the quick brown fox jumps over a lazy dog while metrics count tokens and blocks move between host and "
         "device memory").split()
KEPT = re.compile(r"^(vllm:kv_offload_cpu_cache_usage_perc|vllm:num_preemptions|vllm:kv_offload_(store|load)_bytes_total"
                  r"|kvtier_(tier_(resident|fill|info|size|stored|reset|predicted|prediction)|kv_bytes|correction|events|upstream_up))")

# Bytes of the RAM tier. A block of the tiny model has 16 KiB.
TIER = 8 << 20


def fetch(url, timeout=8):
    """The body, or None where there is none."""
    try:
        return urllib.request.urlopen(url, timeout=timeout).read().decode()
    except Exception:
        return None


def post(url):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, data=b"", method="POST"), timeout=30).read()
    except Exception as error:
        return repr(error)


def kept(body):
    """Samples that compare.py needs, by name and labels."""
    lines = (line for line in body.splitlines() if KEPT.match(line) and "_bucket" not in line and "_created" not in line)
    return dict(line.rsplit(" ", 1) for line in lines)


def ports_taken(first, count):
    """Those of the ports that somebody listens on: what answers there would be taken for ours."""
    def answers(port):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0
    return [port for port in range(first, first + count) if answers(port)]


class Process:
    """A program of ours, ended by its pid."""

    def __init__(self, command, log, env=None):
        self.log = open(log, "ab")
        self.child = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=env, start_new_session=True)

    def end(self):
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGTERM)
            try:
                self.child.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.child.pid, signal.SIGKILL)
                self.child.wait()
        self.log.close()


class Bench:
    """Engine, exporters and scraper of one run."""

    def __init__(self, args):
        self.args, self.out = args, Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        for name in ("venv", "model"):
            link = self.out / name
            if not link.exists():
                link.symlink_to((Path(args.engine) / name).resolve())
        port = args.port
        self.engine_url = f"http://127.0.0.1:{port}"
        self.events, self.replay = port + 1, port + 2
        self.ports = {"A": port + 3, "B": port + 4, "C": port + 5}
        self.engine, self.exporters, self.phase, self.stop, self.failed = None, {}, "start", False, 0
        self.recording = gzip.open(self.out / "scrapes.jsonl.gz", "at")

    def start_engine(self, blocks=160, model=None):
        env = dict(os.environ, PORT=str(self.args.port), EVENTS=str(self.events), REPLAY=str(self.replay),
                   BLOCKS=str(blocks))
        if model:
            env["MODEL"] = str(model)
        command = ["bash", self.args.serve, str(self.out), self.args.form, str(self.args.tier)]
        self.engine = Process(command, self.out / "engine.log", env)
        for _ in range(600):
            if fetch(f"{self.engine_url}/health", 2) is not None:
                return
            if self.engine.child.poll() is not None:
                sys.exit(f"the engine ended: see {self.out}/engine.log")
            time.sleep(0.5)
        sys.exit("the engine did not answer within 5 minutes")

    def end_engine(self):
        self.engine.end()
        # A tier that is gone holds nothing; its slots stay known from the lines before.
        with open(self.out / "trace.pid0", "a") as trace:
            trace.write(json.dumps({"t": time.time(), "op": "end", "held": 0, "pend": 0, "n": 0}) + "\n")

    def start_exporter(self, name):
        flags = ["--upstream", f"{self.engine_url}/metrics", "--web.listen-address", f"127.0.0.1:{self.ports[name]}"]
        if name in "BC":
            flags += ["--events", f"tcp://127.0.0.1:{self.events}"]
        if name == "B":
            flags += ["--events.replay", f"tcp://127.0.0.1:{self.replay}"]
        flags += self.args.flags.split()
        self.exporters[name] = Process([self.args.exporter, *flags], self.out / f"exporter-{name}.log")

    def restart_exporters(self):
        for name in "BC":
            self.exporters[name].end()
            self.start_exporter(name)

    def scrape_forever(self):
        due = time.time()
        while not self.stop:
            record = {"phase": self.phase, "of": {}}
            for name, port in self.ports.items():
                began = time.time()
                body = fetch(f"http://127.0.0.1:{port}/metrics")
                record["of"][name] = {"t0": began, "t1": time.time(), "samples": body and kept(body)}
            self.recording.write(json.dumps(record) + "\n")
            due = max(due + self.args.every, time.time())
            time.sleep(max(0.0, due - time.time()))

    def load(self, requests, documents, seed, at_once, words, skew, answer=4, pause=0.12):
        """Prompts of `documents`, drawn by Zipf's law with that exponent; 0 takes each once, in order. Each of the
        `at_once` clients waits `pause` seconds between two of its requests."""
        draw = random.Random(seed)
        texts = [" ".join(draw.choice(WORDS) for _ in range(draw.randint(*words))) for _ in range(documents)]
        weights = [1 / (rank + 1) ** skew for rank in range(documents)]
        picks = draw.choices(range(documents), weights, k=requests) if skew else [n % documents for n in range(requests)]
        jobs, lock, failed = [texts[at] + " " + " ".join(draw.choice(WORDS) for _ in range(8)) for at in picks], threading.Lock(), []

        def work():
            while True:
                with lock:
                    if not jobs:
                        return
                    prompt = jobs.pop(0)
                body = {"model": "tiny-llama", "prompt": prompt, "max_tokens": answer, "ignore_eos": True, "temperature": 0}
                request = urllib.request.Request(f"{self.engine_url}/v1/completions", json.dumps(body).encode(),
                                                 {"Content-Type": "application/json"})
                try:
                    urllib.request.urlopen(request, timeout=600).read()
                except Exception as error:
                    failed.append(repr(error))
                time.sleep(pause)

        workers = [threading.Thread(target=work) for _ in range(at_once)]
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
        if failed:
            self.failed += len(failed)
            print(f"  {len(failed)} of {requests} requests failed: {failed[0]}", flush=True)

    def beside(self, action, **load):
        """Runs `action` in the middle of a load."""
        worker = threading.Thread(target=self.load, kwargs=load)
        worker.start()
        time.sleep(6)
        action()
        worker.join()

    def reset(self, tier):
        return post(f"{self.engine_url}/reset_prefix_cache?reset_external={'true' if tier else 'false'}")


ZIPF = {"words": (20, 240), "at_once": 3, "skew": 0.8, "documents": 120, "requests": 400}


def restart_engine(bench, **how):
    bench.end_engine()
    time.sleep(4)
    bench.start_engine(model=bench.args.model, **how)
    time.sleep(8)


# Each phase begins where the one before it ended.
PHASES = {
    "empty": lambda b: time.sleep(8),
    "filling": lambda b: b.load(requests=40, documents=60, seed=1, at_once=2, words=(100, 200), skew=0, pause=0.8),
    "half full at rest": lambda b: time.sleep(8),
    "full, evictions": lambda b: b.load(requests=500, documents=300, seed=2, at_once=3, words=(100, 240), skew=0.3),
    "reload-heavy": lambda b: b.load(requests=500, documents=40, seed=3, at_once=3, words=(150, 250), skew=0.4),
    "idle": lambda b: time.sleep(8),
    "gpu reset, idle": lambda b: (b.reset(False), time.sleep(6)),
    "gpu reset, load": lambda b: b.load(seed=4, **ZIPF),
    "reset, idle": lambda b: (b.reset(True), time.sleep(8)),
    "refill": lambda b: b.load(seed=5, **ZIPF),
    "reset under load": lambda b: b.beside(lambda: b.reset(True), seed=6, **ZIPF),
    "engine restart": lambda b: restart_engine(b),
    "load after it": lambda b: b.load(seed=7, **ZIPF),
    "engine restart, load": lambda b: (restart_engine(b), b.load(seed=8, **ZIPF)),
    "exporter restart, load": lambda b: b.beside(b.restart_exporters, seed=9, **ZIPF),
    "exporter restart, idle": lambda b: (b.restart_exporters(), time.sleep(10)),
    "load at last": lambda b: b.load(seed=10, **ZIPF),
    "few blocks": lambda b: restart_engine(b, blocks=66),
    "preemptions": lambda b: b.load(requests=320, documents=30, seed=11, at_once=8, words=(120, 200), skew=0.5, answer=160),
    "after preemptions": lambda b: time.sleep(5),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", help="folder with venv and model, as engine/setup.sh makes it")
    parser.add_argument("form", choices=["size", "transfer", "shm", "tiering"])
    parser.add_argument("out")
    parser.add_argument("--exporter", required=True)
    parser.add_argument("--serve", default=str(HERE / "engine/serve.sh"))
    parser.add_argument("--port", type=int, default=18100)
    parser.add_argument("--tier", type=int, default=TIER, help="bytes of the RAM tier")
    parser.add_argument("--every", type=float, default=0.5, help="seconds from scrape to scrape")
    parser.add_argument("--flags", default="", help="further flags of all exporters")
    parser.add_argument("--model", help="another model than the engine folder's")
    parser.add_argument("--phases", help="some of: " + ", ".join(PHASES))
    args = parser.parse_args()
    # What it started ends with it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit("ended by a signal"))
    if taken := ports_taken(args.port, 6):
        sys.exit(f"somebody listens on {taken}: take others with --port")
    bench = Bench(args)
    for trace in bench.out.glob("trace.pid*"):
        trace.unlink()
    phases = args.phases.split(",") if args.phases else list(PHASES)
    try:
        bench.start_engine(model=args.model)
        [bench.start_exporter(name) for name in bench.ports]
        time.sleep(1)
        scraper = threading.Thread(target=bench.scrape_forever)
        scraper.start()
        for name in phases:
            bench.phase, began = name, time.time()
            PHASES[name](bench)
            time.sleep(1)
            print(f"{args.form}: {name}, {time.time() - began:.0f} s", flush=True)
        bench.stop = True
        scraper.join()
    finally:
        bench.stop = True
        [exporter.end() for exporter in bench.exporters.values()]
        if bench.engine:
            bench.engine.end()
        bench.recording.close()
        shutil.rmtree(bench.out / "fs", ignore_errors=True)
    if bench.failed:
        sys.exit(f"{bench.failed} requests failed: the phases were not driven as they should be")


if __name__ == "__main__":
    main()
