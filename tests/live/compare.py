#!/usr/bin/env python3
"""Holds what the exporters said of the tier against what its manager really held: a table of runs of drive.py.

    compare.py OUT [--examples N]
    compare.py size=OUT-1 transfer=OUT-2 ...          several runs in one table

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
import sys

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


def tally(out, size):
    """Counts of a run by phase and exporter, and scrapes of each fault."""
    truth = Truth(out)
    table, examples = collections.OrderedDict(), collections.defaultdict(list)
    with gzip.open(f"{out}/scrapes.jsonl.gz", "rt") as lines:
        for line in lines:
            record = json.loads(line)
            for name, scrape in record["of"].items():
                count = table.setdefault(record["phase"], {}).setdefault(name, collections.Counter())
                judge(scrape, truth, size, count, examples, record["phase"], name)
    return table, examples


def total(table):
    everything = {name: collections.Counter() for name in "ABC"}
    for by_name in table.values():
        for name, count in by_name.items():
            everything[name].update(count)
    return everything


def row(cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def in_full(table):
    row(["phase", "scrapes", "A: bound, (a)"] + [cell for name in "BC" for cell in (
        f"{name}: bound, exact, open", f"{name} (a)", f"{name} (b)", f"{name} outside")])
    row(["---"] * 11)
    for phase, by_name in [*table.items(), ("all", total(table))]:
        a = by_name["A"]
        cells = [phase, a["scrapes"], f"{a['bound']}, {a['a']}"]
        for one in (by_name["B"], by_name["C"]):
            cells += [f"{one['bound']}, {one['exact']}, {one['open']}", one["a"], one["b"], one["outside"]]
        row(cells)


def side_by_side(tables):
    """A row a phase and a column a run: scrapes, and of B and C how many are exact, (a) and (b)."""
    row(["phase", *tables])
    row(["---"] * (1 + len(tables)))
    phases = [phase for phase in next(iter(tables.values())) if phase != "start"] + ["all"]
    tables = {name: {**table, "all": total(table)} for name, table in tables.items()}
    for phase in phases:
        cells = [phase]
        for table in tables.values():
            by_name = table.get(phase)
            each = [f"{name} {by_name[name]['exact']}, {by_name[name]['a']}, {by_name[name]['b']}" for name in "BC"] if by_name else []
            cells.append(f"{by_name['A']['scrapes']}: " + "; ".join(each) if by_name else "")
        row(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="+", help="folders of runs; of several there is one table, named NAME=FOLDER")
    parser.add_argument("--size", type=int, default=8 << 20, help="bytes of the RAM tier")
    parser.add_argument("--examples", type=int, default=0, help="show so many scrapes of each fault")
    args = parser.parse_args()
    runs = dict(out.split("=", 1) if "=" in out else (out, out) for out in args.out)
    tallies = {name: tally(out, args.size) for name, out in runs.items()}
    tables = {name: table for name, (table, _) in tallies.items()}
    for run, table in tables.items():
        silent = [name for name, count in total(table).items() if not count["scrapes"]]
        if silent:
            sys.exit(f"{run}: nothing was scraped of exporter {', '.join(silent)}, so nothing was compared")
    in_full(*tables.values()) if len(tables) == 1 else side_by_side(tables)
    for run, (_, examples) in tallies.items():
        for (phase, name, what), found in examples.items():
            for facts in found[:args.examples]:
                print(f"  {run}, {phase}, {name}, {what}: {facts}")


if __name__ == "__main__":
    main()
