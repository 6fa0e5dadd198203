#!/usr/bin/env python3
"""Holds what the exporters said of the tier against what its manager really held: one table of a run of drive.py.

    compare.py OUT [--markdown] [--examples N]

For each phase and exporter, over the scrapes of a page that was up:

    (a)  scrapes whose fill bound is below (held - pending) / slots
    (b)  scrapes that call residency exact while it differs from the chunks that are ready

each at *every* moment from 50 ms before the scrape to its end: the stream may lag so much and no more. Beside them: the
scrapes that have a bound, those that call residency exact, and those whose bounds of residency do not hold the truth.
"""

import argparse
import bisect
import collections
import glob
import gzip
import json

LAG = 0.05


class Truth:
    """What the tier manager held, call by call."""

    def __init__(self, folder):
        states = []
        for path in glob.glob(f"{folder}/trace.pid*"):
            with open(path) as lines:
                for line in lines:
                    call = json.loads(line)
                    states.append((call["t"], call["held"] - call["pend"], call["n"]))
        self.states = sorted(states)
        self.times = [state[0] for state in self.states]
        self.slots = max((slots for _, _, slots in states), default=0)

    def ready(self, since, until):
        """Chunks that were ready at some moment of that time."""
        first = max(bisect.bisect_right(self.times, since) - 1, 0)
        last = bisect.bisect_right(self.times, until)
        # Before the first call of an engine its tier is empty.
        if not self.times or until < self.times[0]:
            return [0]
        return [ready for _, ready, _ in self.states[first:last]]


def sample(samples, name, *labels):
    for series, value in samples.items():
        if series.split("{")[0] == name and all(label in series for label in labels):
            return float(value)
    return None


def judge(scrape, truth, size, count, examples, phase, name):
    samples = scrape["samples"]
    if not samples or sample(samples, "kvtier_upstream_up") != 1:
        count["down"] += 1
        return
    count["scrapes"] += 1
    ready = truth.ready(scrape["t0"] - LAG, scrape["t1"])
    chunk = size / truth.slots
    bound = sample(samples, "kvtier_tier_fill_upper_bound_bytes", 'tier="ram"')
    low = sample(samples, "kvtier_tier_resident_bytes", 'bound="low"')
    high = sample(samples, "kvtier_tier_resident_bytes", 'bound="high"')
    exact = sample(samples, "kvtier_tier_resident_exact")
    facts = {"t0": round(scrape["t0"], 3), "ready": (min(ready), max(ready)), "bound": bound and bound / chunk,
             "low": low and low / chunk, "high": high and high / chunk, "exact": exact}
    if bound is not None:
        count["bound"] += 1
        if all(bound / chunk < chunks - 1e-6 for chunks in ready):
            count["a"] += 1
            examples[phase, name, "a"].append(facts)
    if exact == 1 and low is not None:
        count["exact"] += 1
        if all(abs(low / chunk - chunks) > 1e-3 for chunks in ready):
            count["b"] += 1
            examples[phase, name, "b"].append(facts)
    elif low is not None:
        count["open"] += 1
        # Without a size nobody can say how much is in there at most.
        most = float("inf") if high is None else high
        if all(low / chunk > chunks + 1e-3 or most / chunk < chunks - 1e-3 for chunks in ready):
            count["outside"] += 1
            examples[phase, name, "outside"].append(facts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--size", type=int, default=8 << 20, help="bytes of the RAM tier")
    parser.add_argument("--examples", type=int, default=0, help="show so many scrapes of each fault")
    args = parser.parse_args()
    truth = Truth(args.out)
    table, examples = collections.OrderedDict(), collections.defaultdict(list)
    with gzip.open(f"{args.out}/scrapes.jsonl.gz", "rt") as lines:
        for line in lines:
            record = json.loads(line)
            for name, scrape in record["of"].items():
                count = table.setdefault(record["phase"], {}).setdefault(name, collections.Counter())
                judge(scrape, truth, args.size, count, examples, record["phase"], name)
    print("| phase | scrapes | A: bound, (a) | B: bound, exact, open | B (a) | B (b) | B outside | C: bound, exact, open | C (a) | C (b) | C outside |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    total = collections.Counter()
    for phase, by_name in table.items():
        a, b, c = (by_name[name] for name in "ABC")
        cells = [phase, a["scrapes"], f"{a['bound']}, {a['a']}"]
        for one in (b, c):
            cells += [f"{one['bound']}, {one['exact']}, {one['open']}", one["a"], one["b"], one["outside"]]
        print("| " + " | ".join(str(cell) for cell in cells) + " |")
        for name, count in by_name.items():
            for what, number in count.items():
                total[name, what] += number
    print("| all | {} | {}, {} | {}, {}, {} | {} | {} | {} | {}, {}, {} | {} | {} | {} |".format(
        total["A", "scrapes"], total["A", "bound"], total["A", "a"],
        *(total[name, what] for name in "BC" for what in ("bound", "exact", "open", "a", "b", "outside"))))
    for (phase, name, what), found in examples.items():
        for facts in found[:args.examples]:
            print(f"  {phase}, {name}, {what}: {facts}")


if __name__ == "__main__":
    main()
