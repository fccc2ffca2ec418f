"""epimem score and epimem generate against transformers' values for the default model (tests/data/forward).

The reference pass within float32 tolerances, the product's pass within those of 8-bit activations, greedy paths, tiny
models of other architectures, and what bad lines and bad arguments do. With the argument "full" the reference pass also
scores the prompts of 1,000 and 2,500 tokens.
"""
import json
import math
import struct
import subprocess
import sys
import time
from pathlib import Path

from harness import MODEL, PROGRAM, ROOT, check, environment, finish

full = "full" in sys.argv[1:]
data = Path(ROOT, "tests", "data", "forward")
tiny = Path(ROOT, "tests", "data", "tiny")
prompts = json.loads((data / "forward.json").read_text())
greedy = json.loads((data / "greedy.json").read_text())


def run(command, lines, *arguments, model=MODEL):
    """Exit status, answers and complaints of one process that gets these requests."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    done = subprocess.run([PROGRAM, command, "-m", str(model), *arguments], input=text, capture_output=True, text=True,
                          env=environment())
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def floats(path):
    raw = path.read_bytes()
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def expected_nll(prompt):
    return floats(data / f'{prompt["name"]}.nll.f32') if prompt["tokens"] > 1 else ()


def score_exactly():
    chosen = [p for p in prompts if full or p["tokens"] <= 300]
    start = time.monotonic()
    code, answers, said = run("score", [{"ids": p["ids"], "argmax": True} for p in chosen], "--exact")
    check("score --exact ends well", code == 0 and len(answers) == len(chosen), said)
    print(f"     {time.monotonic() - start:.1f} s for {sum(p['tokens'] for p in chosen)} tokens")
    for p, a in zip(chosen, answers):
        worst = max((abs(x - y) for x, y in zip(a["nll"], expected_nll(p))), default=0.0)
        check(f'{p["name"]}: each nll within 1e-3', len(a["nll"]) == p["tokens"] - 1 and worst <= 1e-3, worst)
        top = dict(map(tuple, a["top20"]))
        worst = max(abs(top.get(i, math.inf) - x) for i, x in p["top20"])
        check(f'{p["name"]}: top 20 within 1e-3', worst <= 1e-3, worst)
        if p["mean_nll"] is None:
            check(f'{p["name"]}: no mean of one token', a["mean_nll"] is None, a["mean_nll"])
        else:
            check(f'{p["name"]}: mean nll', abs(a["mean_nll"] - p["mean_nll"]) <= 1e-3, a["mean_nll"])
    return {p["name"]: a for p, a in zip(chosen, answers)}


def score_as_product(exact):
    code, answers, said = run("score", [{"ids": p["ids"], "argmax": True} for p in prompts])
    check("score ends well", code == 0 and len(answers) == len(prompts), said)
    for p, a in zip(prompts, answers):
        name, n = p["name"], p["tokens"]
        if n >= 64:
            bound = 0.03 if n <= 300 else 0.01
            difference = a["mean_nll"] - p["mean_nll"]
            check(f"{name}: mean nll within {bound}", abs(difference) <= bound, difference)
            print(f"     {difference:+.4f}")
        top = dict(map(tuple, a["top20"]))
        # A lower bound of the divergence over the ids both list, and the rest as one more outcome.
        kl = sum(math.exp(x) * (x - top[i]) for i, x in p["top20"] if i in top)
        rest_p = 1 - sum(math.exp(x) for i, x in p["top20"] if i in top)
        rest_q = 1 - sum(math.exp(top[i]) for i, x in p["top20"] if i in top)
        if rest_p > 1e-9 and rest_q > 1e-9:
            kl += rest_p * math.log(rest_p / rest_q)
        check(f"{name}: divergence of the last position within 0.02", kl <= 0.02, kl)
        if name in exact and n >= 64:
            same = sum(x == y for x, y in zip(a["argmax"], exact[name]["argmax"])) / n
            check(f"{name}: most probable token agrees", same >= (0.90 if n <= 64 else 0.95), same)
            print(f"     divergence {kl:.4f}, agreement {same:.3f}")
    again = run("score", [{"ids": p["ids"], "argmax": True} for p in prompts[:4]], "-t", "1")[1]
    check("one thread gives the same numbers", again == answers[:4])


def follow_greedy_paths():
    requests = [{"ids": g["prompt_ids"], "max_tokens": 64, "ignore_eos": True} for g in greedy]
    code, answers, said = run("generate", requests, "--exact")
    check("generate --exact ends well", code == 0, said)
    for g, a in zip(greedy, answers):
        check(f'{g["name"]}: greedy path', a["ids"] == g["ids"], (a["ids"], g["ids"]))
        check(f'{g["name"]}: text', a["text"] == g["text"] and a["finish_reason"] == "length", a)


def feed_greedy_paths():
    """The product's pass, fed the path: the same choice wherever the reference's is clear."""
    wrong = steps = clear = 0
    answers = run("score", [{"ids": g["prompt_ids"] + g["ids"], "argmax": True} for g in greedy])[1]
    for g, a in zip(greedy, answers):
        first = len(g["prompt_ids"]) - 1
        for i, (token, gap) in enumerate(zip(g["ids"], g["gap"])):
            different = a["argmax"][first + i] != token
            steps += 1
            wrong += different
            clear += different and gap > 1.5
    check("fed greedy paths: no clear step decided otherwise", clear == 0, clear)
    check("fed greedy paths: at most 5 % of the steps otherwise", wrong <= steps * 0.05, f"{wrong} of {steps}")
    print(f"     {wrong} of {steps} otherwise")


def generate_as_product():
    requests = [{"messages": g["messages"], "max_tokens": 48} for g in greedy]
    code, answers, said = run("generate", requests)
    check("generate ends well", code == 0, said)
    for g, a in zip(greedy, answers):
        check(f'{g["name"]}: prompt of {len(g["prompt_ids"])} tokens', a["prompt_tokens"] == len(g["prompt_ids"]), a)
        check(f'{g["name"]}: no end token in the answer', 2 not in a["ids"] and "<|im_end|>" not in a["text"], a)
    for g, a in zip(greedy, run("generate", [{**r, "max_tokens": 4} for r in requests])[1]):
        check(f'{g["name"]}: length bounds the answer', len(a["ids"]) <= 4 and (a["finish_reason"] == "length") == (len(a["ids"]) == 4), a)
    check("again the same", run("generate", requests)[1] == answers)
    check("one thread gives the same", run("generate", requests, "-t", "1")[1] == answers)
    sampled = [{**requests[0], "temperature": 1.0, "top_p": 0.95, "seed": seed} for seed in (1, 1, 2)]
    a, b, c = (x["ids"] for x in run("generate", sampled)[1])
    check("a seed repeats", a == b)
    check("another seed differs", a != c)


def score_tiny_models():
    """Other architectures, without a vocabulary: ids in, ids out."""
    for m in json.loads((tiny / "models.json").read_text()):
        model = tiny / f'{m["name"]}.gguf'
        ids, vocab = m["ids"], m["vocab"]
        for kind, arguments in (("logits", ["--exact"]), ("bf16kv", [])):
            logits = floats(tiny / f'{m["name"]}.{kind}.f32')
            rows = [logits[i * vocab:(i + 1) * vocab] for i in range(len(ids))]
            norms = [math.log(sum(map(math.exp, row))) for row in rows]
            code, answers, said = run("score", [{"ids": ids}], *arguments, model=model)
            worst = max(abs(n - row[i] - got) for n, row, i, got in zip(norms, rows, ids[1:], answers[0].get("nll", [math.inf])))
            check(f'{m["name"]} {kind}: each nll within 1e-3', code == 0 and len(answers[0]["nll"]) == len(ids) - 1 and worst <= 1e-3, (worst, said))
        code, answers, _ = run("generate", [{"ids": ids, "max_tokens": 3}, {"messages": [{"role": "user", "content": "Hi"}]}], model=model)
        check(f'{m["name"]}: generates ids alone', code == 1 and len(answers[0]["ids"]) == 3 and "text" not in answers[0], answers)
        check(f'{m["name"]}: has no words for messages', "no vocabulary" in answers[1]["error"], answers[1])


def refuse_bad_lines():
    bad = ["", "{", "[1]", "{} {}", '{"ids":[1],"ids":[2]}', '{"text":"a\\u0000"}', {"ids": []}, {"ids": [49152]}, {"ids": [-1]},
           {"ids": [1.5]}, {"ids": ["1"]}, {"ids": [1], "text": "a"}, {"ids": [1] * 8193}, {}]
    good = {"ids": [1, 2, 3]}
    code, answers, _ = run("score", [x for b in bad for x in (b, good)])
    check("score: exit status 1", code == 1, code)
    check("score: one line for each", len(answers) == 2 * len(bad), len(answers))
    for b, a in zip(bad, answers[::2]):
        check(f"score: {str(b)[:40]!r} refused", list(a) == ["error"], a)
    check("score: good lines between are answered", all("nll" in a and len(a["nll"]) == 2 for a in answers[1::2]))
    user = {"role": "user", "content": "Hi"}
    bad = [("messages", {"messages": []}), ("messages", {"messages": "x"}), ("messages[0]", {"messages": [{"role": "user"}]}),
           ("role", {"messages": [{"role": "robot", "content": "x"}]}), ("max_tokens", {"messages": [user], "max_tokens": 0}),
           ("temperature", {"messages": [user], "temperature": -1}), ("ids[0]", {"ids": [49152]}), ("not both", {"ids": [1], "messages": [user]}),
           ("messages[1].content: U+0004", {"messages": [user, {"role": "user", "content": "a\x04"}]}), ("ignore_eos", {"ids": [1], "ignore_eos": 1})]
    code, answers, _ = run("generate", [b for _, b in bad] + [{"ids": [1, 2], "max_tokens": 1}])
    check("generate: exit status 1", code == 1, code)
    for (word, b), a in zip(bad, answers):
        check(f"generate: {str(b)[:50]} refused", list(a) == ["error"] and word in a["error"], a)
    check("generate: a good line after them", len(answers) == len(bad) + 1 and len(answers[-1]["ids"]) == 1, answers[-1])


def refuse_bad_arguments():
    for command in ("score", "generate"):
        done = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, env=environment())
        check(f"{command} --help", done.returncode == 0 and f"epimem {command} -m MODEL" in done.stdout)
        done = subprocess.run([PROGRAM, command], input="", capture_output=True, text=True)
        check(f"{command} without a model", done.returncode == 2 and "-m" in done.stderr, done)
        done = subprocess.run([PROGRAM, command, "-m", str(data / "forward.json")], input="", capture_output=True, text=True)
        check(f"{command} with no model file", done.returncode == 1 and "forward.json" in done.stderr and "magic" in done.stderr, done)
    corpus = Path(ROOT, "tests", "fuzz", "corpus", "gguf")
    for file in sorted(corpus.glob("*.gguf")):
        done = subprocess.run([PROGRAM, "score", "-m", str(file)], input="", capture_output=True, text=True, timeout=5)
        check(f"{file.name}: refused by name", done.returncode == 1 and file.name in done.stderr and not done.stdout, done)


def answers_come_at_once():
    """A line is answered before the next is sent, and before the end of input."""
    with subprocess.Popen([PROGRAM, "score", "-m", MODEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        for ids in ([1, 2], [3]):
            p.stdin.write(json.dumps({"ids": ids}) + "\n")
            p.stdin.flush()
            answer = json.loads(p.stdout.readline())
            check("a line is answered at once", len(answer["nll"]) == len(ids) - 1)
        p.stdin.close()
        check("ends with its input", p.wait(10) == 0)


score_as_product(score_exactly())
follow_greedy_paths()
feed_greedy_paths()
generate_as_product()
score_tiny_models()
refuse_bad_lines()
refuse_bad_arguments()
answers_come_at_once()
finish()
