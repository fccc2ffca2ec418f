"""epimem and llama.cpp side by side: python3 tests/bench/compare_llama.py LLAMA-BENCH [-m MODEL] [-t 2] [-d 0,4096,7600] [-r 5]

Runs both alternately, r times each depth, in one go, and prints tokens/s (median, least, most) and the ratio of the medians.
LLAMA-BENCH is the llama-bench program of a llama.cpp built for this machine; its cache is fp16, ours the default codec.
--json keeps every run, with processor, load and date: what a figure in a document is taken from.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess

p = argparse.ArgumentParser()
p.add_argument("llama_bench")
p.add_argument("-m", default="models/SmolLM2-135M-Instruct.Q4_1.gguf")
p.add_argument("-t", default="2")
p.add_argument("-d", default="0,4096,7600")
p.add_argument("-r", type=int, default=5)
p.add_argument("--program", default="build/epimem")
p.add_argument("--json", metavar="FILE")
a = p.parse_args()


def ours(depth):
    out = subprocess.run([a.program, "bench", "-m", a.m, "-t", a.t, "-p", "512", "-n", "64", "-d", depth, "-r", "1", "--json"],
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    return {j["test"]: j["tokens_per_s_median"] for j in map(json.loads, out.splitlines())}


def theirs(depth):
    out = subprocess.run([a.llama_bench, "-m", a.m, "-t", a.t, "-p", "512", "-n", "64", "-d", depth, "-r", "1", "-o", "json"],
                         check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return {"prefill" if j["n_prompt"] else "decode": j["avg_ts"] for j in json.loads(out)}


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")


record = {"date": datetime.date.today().isoformat(), "processor": processor(), "cores": os.cpu_count(), "threads": int(a.t),
          "model": os.path.basename(a.m), "load_before": os.getloadavg()[0], "tests": []}
print(f"{'test':8} {'depth':>6} {'epimem':>8} {'(least':>8} {'most)':>8} {'llama.cpp':>10} {'(least':>8} {'most)':>8} {'ratio':>6}")
for depth in a.d.split(","):
    runs = {"epimem": [], "llama": []}
    for _ in range(a.r):
        runs["epimem"].append(ours(depth))
        runs["llama"].append(theirs(depth))
    for test in ("prefill", "decode"):
        x, y = ([r[test] for r in runs[k]] for k in ("epimem", "llama"))
        record["tests"].append({"test": test, "depth": int(depth), "epimem": x, "llama_cpp": y,
                                "ratio_of_medians": round(statistics.median(x) / statistics.median(y), 3),
                                "ratio_of_pairs": [round(i / j, 3) for i, j in zip(x, y)]})
        print(f"{test:8} {depth:>6} {statistics.median(x):8.1f} {min(x):8.1f} {max(x):8.1f} {statistics.median(y):10.1f} {min(y):8.1f} {max(y):8.1f} "
              f"{statistics.median(x) / statistics.median(y):6.2f}", flush=True)
if a.json:
    record["load_after"] = os.getloadavg()[0]
    with open(a.json, "w", encoding="utf-8") as f:
        json.dump(record, f, indent=1)
        f.write("\n")
