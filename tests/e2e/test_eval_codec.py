"""epimem eval codec: order of the codecs, the exact one costs nothing, texts and conversations, bad calls."""
import json
import os

from harness import MODEL, Folder, check, finish, run

with Folder() as folder:
    turns = [{"speaker": "Ann" if i % 2 else "Ben", "dia_id": "D1:%d" % i,
              "text": "I saw %d swifts over the %s today, %d more than on day %d." % (i * 7 % 23, ("mill", "hall", "pier")[i % 3], i % 5, i)}
             for i in range(60)]
    chat = os.path.join(folder, "chat.json")
    with open(chat, "w") as f:
        json.dump({"conversation": {"session_1": turns, "session_1_date_time": "1 May, 2024"}, "qa": []}, f)
    plain = os.path.join(folder, "chat.txt")
    with open(plain, "w") as f:
        f.write("[1 May, 2024]\n" + "\n".join("%s: %s" % (t["speaker"], t["text"]) for t in turns))

    def measure(path, *more):
        status, out, err = run("eval", "codec", "-m", MODEL, "--text", path, "--context", "900", "--tokens", "96", "--json", *more, limit_s=900)
        check("it ends well", status == 0, err)
        return {r["codec"]: r for r in map(json.loads, out.splitlines())}

    got = measure(chat, "--codecs", "bf16,turboquant-k4,turboquant,naive,kivi")
    check("all were measured", list(got) == ["bf16", "turboquant-k4", "turboquant", "naive", "kivi"], list(got))
    check("the exact cache costs nothing", got["bf16"]["kl"] == 0 and got["bf16"]["top1"] == 1, got["bf16"])
    check("four bits lose less than two, a rotation less than none",
          0 < got["turboquant-k4"]["kl"] < got["turboquant"]["kl"] < got["naive"]["kl"], {k: v["kl"] for k, v in got.items()})
    check("bits are those of the pages, or what a store would take", [got[k]["bits"] for k in got] == [16, 3.25, 2.25, 2.5, 3])
    check("a codec that no page holds is measured too", 0 < got["kivi"]["kl"] < got["naive"]["kl"], got["kivi"])
    check("every token counts", all(r["tokens"] == 96 for r in got.values()))
    check("exact attention has no error, coded one in every layer",
          got["bf16"]["attention_error"] == 0 and all(0 < x < 1.5 for x in got["turboquant"]["attention_error_by_layer"]), got["turboquant"])
    check("attention errs less with keys of four bits, more without a rotation",
          got["turboquant-k4"]["attention_error"] < got["turboquant"]["attention_error"] < got["naive"]["attention_error"])
    check("times are told", all(r["encode_us_per_token"] > 0 and r["decode_us_per_token"] > 0 and r["attend_us"] > 0 for r in got.values()))
    again = measure(plain, "--codecs", "turboquant")
    check("a conversation is its plain text", again["turboquant"]["kl"] == got["turboquant"]["kl"])
    served = measure(chat, "--codecs", "turboquant", "--served")
    check("as served it differs a little", served["turboquant"]["kl"] != got["turboquant"]["kl"])

    calibration = os.path.join(folder, "calibration")
    status, out, err = run("calibrate", "-m", MODEL, "--text", chat, "--tokens", "900", "-o", calibration, limit_s=900)
    check("calibrate ends well", status == 0, err)
    plus = measure(chat, "--codecs", "oscar+,oscar+k4", "--calibration", calibration)
    check("calibrated keys lose less than turboquant's", plus["oscar+"]["kl"] < got["turboquant"]["kl"], plus)
    check("at no more than 2.4 bits", plus["oscar+"]["bits"] <= 2.4 and plus["oscar+k4"]["bits"] == 3.25, plus)

    picture = os.path.join(folder, "picture.svg")
    measure(chat, "--codecs", "turboquant,naive", "--plot", picture)
    with open(picture) as f:
        drawn = f.read()
    check("the picture names what was measured, as points and as lines",
          drawn.count(">turboquant<") == 2 and drawn.count(">naive<") == 2 and drawn.endswith("</svg>\n"))
    check("its lines have a point for each layer", all(line.count(",") == 30 for line in drawn.splitlines() if "<polyline" in line))
    status, out, err = run("eval", "codec", "-m", MODEL, "--text", chat, "--plot", os.path.join(folder, "picture.png"))
    check("another kind of picture is refused", status == 2 and ".svg" in err, err)
    status, out, err = run("eval", "codec", "-m", MODEL, "--text", chat, "--context", "900", "--tokens", "8", "--codecs", "naive",
                           "--plot", os.path.join(folder, "none", "x.svg"))
    check("a picture that cannot be written is an error", status == 1 and "x.svg" in err, err)

    base = ["eval", "codec", "-m", MODEL, "--text", chat]
    status, out, err = run(*base, "--codecs", "turbo")
    check("an unknown codec is named", status == 1 and "turbo" in err and "turboquant" in err, err)
    status, out, err = run(*base, "--codecs", "oscar+")
    check("without calibration it says what is missing", status == 1 and "epimem calibrate" in err, err)
    status, out, err = run(*base)
    check("a short text says how short", status == 1 and "has" in err and "tokens" in err, err)
    check("no text", run("eval", "codec", "-m", MODEL)[0] == 2)
    check("no such measurement", run("eval", "codecs")[0] == 2)
finish()
