#!/usr/bin/env python3
"""Compares kvik with llama.cpp (llama-cpp-python 0.3.36) on the same model file and writes JSON.

usage: bench/peers/compare_llama_cpp.py [--rounds 7] [--out FILE] ...    (--help lists the options)

Both take turns on the same cases in one run, and the order is reversed each round, so that whatever else the
machine does meets both; the result is the median, over the rounds, of kvik's speed divided by the peer's, with
the smallest and the largest ratio. Loading is not timed. Before and after, the machine's read rate is
measured. The peer is built from its source archive into a virtual environment in the cache folder the first
time (some minutes), with the instruction sets of this processor except AMX, whose code in that release ends
the process on some virtual machines.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True
from fetching import cache_dir, say

VERSION = "0.3.36"
# CMake option of the peer: flag in /proc/cpuinfo.
INSTRUCTIONS = {
    "GGML_SSE42": "sse4_2", "GGML_AVX": "avx", "GGML_AVX2": "avx2", "GGML_FMA": "fma", "GGML_F16C": "f16c",
    "GGML_BMI2": "bmi2", "GGML_AVX512": "avx512f", "GGML_AVX512_VBMI": "avx512_vbmi",
    "GGML_AVX512_VNNI": "avx512_vnni", "GGML_AVX512_BF16": "avx512_bf16",
}


def build_options():
    flags = set()
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":")[1].split())
            break
    chosen = [f"-D{name}={'ON' if flag in flags else 'OFF'}" for name, flag in INSTRUCTIONS.items()]
    return ["-DGGML_NATIVE=OFF", *chosen]


def peer_python():
    """The interpreter of the peer's environment, built if it is not there."""
    folder = cache_dir() / "peers" / f"llama-cpp-python-{VERSION}"
    python = folder / "bin" / "python"
    done = folder / "built-with.json"
    options = build_options()
    if done.exists() and json.loads(done.read_text(encoding="utf-8")) == options:
        return python
    say(f"building llama-cpp-python {VERSION} in {folder} ...")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    env = {**os.environ, "CMAKE_ARGS": " ".join(options), "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())}
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-binary", "llama-cpp-python",
                    f"llama-cpp-python=={VERSION}"], check=True, env=env, stdout=sys.stderr)
    done.write_text(json.dumps(options), encoding="utf-8")
    return python


class Peer:
    def __init__(self, arguments, context):
        worker = pathlib.Path(__file__).with_name("llama_cpp_worker.py")
        self.process = subprocess.Popen([str(peer_python()), str(worker), arguments.model, str(arguments.threads),
                                         str(context)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the peer ended with status {self.process.wait()}; nothing can be compared")
        return json.loads(line)

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()


def kvik_json(arguments, *command):
    done = subprocess.run([arguments.kvik, *command, "-o", "json"], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"kvik {command[0]} failed; nothing can be compared")
    return json.loads(done.stdout)


def measure_kvik(arguments, depth):
    records = kvik_json(arguments, "bench", "-m", arguments.model, "-p", str(arguments.prompt), "-n",
                        str(arguments.generate), "-d", str(depth), "-r", "1", "-t", str(arguments.threads),
                        "-ctk", arguments.type, "-ctv", arguments.type)
    return {"prompt" if record["n_prompt"] else "generate": record["samples_ns"][0] / 1e9 for record in records}


def measure_peer(arguments, peer, depth):
    return peer.ask({"depth": depth, "prompt": arguments.prompt, "generate": arguments.generate})


def same_answer(arguments, peer):
    """How many of the first greedy tokens are the same: the peer rounds activations to 8 bits, so not all need be."""
    count = 16
    ours = kvik_json(arguments, "run", "-m", arguments.model, "-p", "It is a truth universally acknowledged, that",
                     "-n", str(count), "--temp", "0", "--ignore-eos", "-t", str(arguments.threads))
    theirs = peer.ask({"greedy": ours["prompt_ids"], "count": count})
    same = 0
    while same < count and ours["ids"][same] == theirs[same]:
        same += 1
    return {"tokens": count, "same_at_the_start": same, "kvik": ours["ids"], "peer": theirs}


def summary(rounds, arguments):
    result = []
    for depth in arguments.depths:
        for test, count in (("prompt", arguments.prompt), ("generate", arguments.generate)):
            if count == 0:
                continue
            pairs = [(r["kvik"][test], r["peer"][test]) for r in rounds if r["depth"] == depth]
            ratios = [peer / kvik for kvik, peer in pairs]
            result.append({
                "test": f"{'pp' if test == 'prompt' else 'tg'}{count}", "depth": depth,
                "kvik_tokens_per_second": count / statistics.median(kvik for kvik, _ in pairs),
                "peer_tokens_per_second": count / statistics.median(peer for _, peer in pairs),
                "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios),
                          "all": ratios},
            })
    return result


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(cache_dir() / "SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--kvik", default=str(ROOT / "build" / "release" / "bin" / "kvik"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count()))
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--depths", type=lambda text: [int(n) for n in text.split(",")], default=[0, 2048])
    parser.add_argument("--type", default="f16", choices=["f16"], help="of kvik's cache; the peer's is f16")
    parser.add_argument("--out", help="file for the JSON; standard output otherwise")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    for path, remedy in ((arguments.model, "scripts/fetch-model smollm2"), (arguments.kvik, "build the release preset")):
        if not os.path.exists(path):
            sys.exit(f"{path} is missing; {remedy}")
    if (load := os.getloadavg()[0]) > 0.5:
        say(f"warning: this machine is busy (load average {load:.1f}); what waits by spinning suffers most, so the "
            "ratios may mean nothing")
    peer = Peer(arguments, max(arguments.depths) + max(arguments.prompt, arguments.generate) + 64)
    say(f"llama-cpp-python {peer.about['version']}: {peer.about['built_with']}")
    machine = kvik_json(arguments, "doctor")
    report = {"peer": {"name": "llama-cpp-python", **peer.about, "cmake_options": build_options()},
              "kvik": {"version": machine["version"], "kernel_set": machine["kernel_set"]},
              "processor": machine["processor"], "threads": arguments.threads, "model": arguments.model,
              "read_rate_before": machine["read_rate"], "greedy": same_answer(arguments, peer), "rounds": []}
    say(f"greedy answers agree for the first {report['greedy']['same_at_the_start']} of "
        f"{report['greedy']['tokens']} tokens")
    for number in range(arguments.rounds):
        for depth in arguments.depths:
            record = {"round": number, "depth": depth, "load_average": os.getloadavg()[0]}
            turns = [("kvik", lambda d: measure_kvik(arguments, d)), ("peer", lambda d: measure_peer(arguments, peer, d))]
            for name, turn in turns if number % 2 == 0 else reversed(turns):
                record[name] = turn(depth)
                time.sleep(0.2)  # spinning threads of one do not meet the other
            report["rounds"].append(record)
            say(f"round {number + 1} of {arguments.rounds}, depth {depth}: " + ", ".join(
                f"{test} {record['peer'][test] / record['kvik'][test]:.2f}" for test in record["kvik"]))
    report["read_rate_after"] = kvik_json(arguments, "doctor")["read_rate"]
    report["summary"] = summary(report["rounds"], arguments)
    text = json.dumps(report, indent=1) + "\n"
    if arguments.out:
        pathlib.Path(arguments.out).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    for row in report["summary"]:
        ratio = row["ratio"]
        say(f"{row['test']} @ d{row['depth']}: kvik {row['kvik_tokens_per_second']:.1f} t/s, llama.cpp "
            f"{row['peer_tokens_per_second']:.1f} t/s, ratio {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})")


if __name__ == "__main__":
    main()
