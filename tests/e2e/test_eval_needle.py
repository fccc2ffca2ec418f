"""epimem eval needle: facts are found in an exact cache, and what naive two-bit codes leave of them; picture; bad calls."""
import json
import os

from harness import MODEL, Folder, check, finish, run

with Folder() as folder:
    picture = os.path.join(folder, "picture.svg")
    call = ["eval", "needle", "-m", MODEL, "--contexts", "480,560", "--depths", "0,100", "--repeats", "1"]
    status, out, err = run(*call, "--codecs", "bf16,naive", "--json", "--plot", picture, limit_s=600)
    check("it ends well", status == 0, err)
    cells = [json.loads(line) for line in out.splitlines()]
    check("a line for every codec, context and depth", [(c["codec"], c["context"], c["depth"]) for c in cells] ==
          [(codec, context, depth) for codec in ("bf16", "naive") for context in (480, 560) for depth in (0, 100)], out)
    exact, naive = cells[:4], cells[4:]
    check("the exact cache adds nothing", all(c["added_nll"] == 0 and c["facts"] == 1 for c in exact), exact)
    check("it knows the facts: a word in thousands is better than one in a hundred", all(c["nll"] < 4.6 for c in exact), exact)
    check("naive codes lose them", sum(c["added_nll"] for c in naive) > 1.0, naive)
    check("added is the difference", all(abs(n["nll"] - x["nll"] - n["added_nll"]) < 1e-4 for x, n in zip(exact, naive)), cells)
    with open(picture) as f:
        drawn = f.read()
    check("a map for each codec and the exact cache", drawn.count("<rect") == 1 + 3 * 4 and ">naive<" in drawn and drawn.endswith("</svg>\n"))

    for bad, says in ((["--contexts", "100"], "at least"), (["--contexts", "900,800"], "rising"), (["--depths", "0,101"], "100"),
                      (["--depths", ""], "rising"), (["--repeats", "0"], "repeats"), (["--plot", "x.png"], ".svg"), (["--no"], "no")):
        status, out, err = run("eval", "needle", "-m", MODEL, *bad)
        check(" ".join(bad) + " is refused", status == 2 and says in err, err)
    check("no model", run("eval", "needle")[0] == 2)
    status, out, err = run(*call, "--contexts", "100000")
    check("a context beyond the model's is refused with the numbers", status == 1 and "100064" in err and "8192" in err, err)
    empty = os.path.join(folder, "empty.txt")
    open(empty, "w").close()
    status, out, err = run(*call, "--text", empty)
    check("an empty filler is refused", status == 1 and "too short" in err, err)
finish()
