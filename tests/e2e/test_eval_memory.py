"""epimem eval memory: recall and likelihood of answers on a small conversation with one telling fact, its modes, bad calls."""
import json
import os

from harness import MODEL, Folder, check, finish, run

FILLER = ["The bus was late again this morning.", "I had soup for lunch.", "It rained all afternoon.", "My brother called about the car.",
          "The shop was closed when I came.", "I watched a film about trains.", "Work was slow today.", "We cleaned the cellar."]

with Folder() as folder:
    def talk(name, n, fact):
        turns = [{"speaker": "Ann" if i % 2 else "Ben", "dia_id": "D1:%d" % i, "text": FILLER[i * 5 % 8]} for i in range(n)]
        turns[fact] = {"speaker": "Ben", "dia_id": "D1:%d" % fact, "text": "Our new parrot is called Quito and speaks Portuguese."}
        path = os.path.join(folder, name)
        with open(path, "w") as f:
            json.dump({"conversation": {"session_1": turns, "session_1_date_time": "1 May, 2024"},
                       "qa": [{"question": "What is the name of Ben's parrot?", "answer": "Quito", "evidence": ["D1:%d" % fact], "category": 4},
                              {"question": "Who plays the oboe?", "evidence": ["D1:1"], "category": 5}]}, f)
        return path

    path = talk("talk.json", 70, 12)
    base = ["eval", "memory", "-m", MODEL, "--data", path, "--json", "--plain", "200", "--keep", os.path.join(folder, "keep")]

    def measure(*more):
        status, out, err = run(*base, *more)
        check("it ends well", status == 0, err)
        return {(r["mode"], r["budget"]): r for r in map(json.loads, out.splitlines())}

    got = measure("--selection-only", "--budget", "64,0")
    one, zero = got["partition", 64], got["partition", 0]
    check("the fact is found, the question without answer left out", one["questions"] == 1 and one["evidence_recall"] == 1, one)
    check("within the budget", 0 < one["tokens_attended"] <= 64, one)
    check("no budget, no recall", zero["evidence_recall"] == 0, zero)
    check("what needs the model is not claimed", one["nll"] is None and one["f1"] is None)

    got = measure("--mode", "partition,text,full,evidence,none", "--budget", "64")
    row = {mode: r for (mode, _), r in got.items()}
    check("all modes", list(row) == ["partition", "text", "full", "evidence", "none"], list(row))
    check("what is attended", [row[m]["evidence_recall"] for m in row] == [1, 1, 1, 1, 0], {m: row[m]["evidence_recall"] for m in row})
    check("gaps are those to the references", abs(row["evidence"]["nll_gap_evidence"]) < 1e-9 and abs(row["none"]["nll_gap_none"]) < 1e-9)
    check("memory helps as much as two nats", all(row[m]["nll_gap_none"] < -2 for m in ("partition", "text", "evidence")),
          {m: row[m]["nll_gap_none"] for m in row})
    check("the answer names it", row["evidence"]["f1"] > 0 and row["none"]["f1"] == 0, {m: row[m]["f1"] for m in row})
    check("two bits are held in fewer bytes than the whole history", row["partition"]["bytes_held"] < 0.8 * row["full"]["bytes_held"])
    check("and come from the store", row["partition"]["bytes_loaded"] > 0)
    cut = {mode: r for (mode, _), r in measure("--mode", "streaming,h2o,snapkv,keydiff", "--budget", "64", "--no-generate").items()}
    check("all four methods of eviction", len(cut) == 4, list(cut))
    check("keep what partition attends to in tokens", len({r["tokens_attended"] for r in cut.values()}) == 1 and
          abs(cut["h2o"]["tokens_attended"] - row["partition"]["tokens_attended"]) <= 128, {m: r["tokens_attended"] for m, r in cut.items()})
    check("the earliest and the latest tokens do not hold the fact", cut["streaming"]["evidence_recall"] == 0)
    check("the others hold some of it", all(0 < cut[m]["evidence_recall"] < 1 for m in ("h2o", "snapkv", "keydiff")), {m: r["evidence_recall"] for m, r in cut.items()})
    check("and differ", len({r["nll"] for r in cut.values()}) == 4)
    again = measure("--mode", "partition", "--budget", "64")["partition", 64]
    check("what was kept measures the same", all(again[k] == row["partition"][k] for k in ("nll", "f1", "evidence_recall", "bytes_attended")), again)

    status, out, err = run("eval", "memory", "-m", MODEL, "--data", path, "--mode", "parttition")
    check("an unknown mode is named", status == 1 and "parttition" in err, err)
    check("no data", run("eval", "memory", "-m", MODEL)[0] == 2)
    wrong = os.path.join(folder, "wrong.json")
    with open(wrong, "w") as f:
        f.write('{"qa": []}')
    status, out, err = run("eval", "memory", "-m", MODEL, "--data", wrong)
    check("another file is refused by name", status == 1 and "wrong.json" in err, err)
finish()
