"""epimem tokenize: JSON lines in, ids out, in order and at once; bad lines answered in their place."""
import base64
import json
import os
import subprocess

from harness import MODEL, PROGRAM, ROOT, check, environment, finish, run

DATA = os.path.join(ROOT, "tests", "data", "tokenizer")


def ask(lines, model=MODEL):
    """Exit status, answers, what was said on standard error."""
    p = subprocess.run([PROGRAM, "tokenize", "-m", model], input="".join(line + "\n" for line in lines).encode(),
                       capture_output=True, env=environment(), timeout=120)
    return p.returncode, [json.loads(line) for line in p.stdout.splitlines()], p.stderr.decode()


def golden(name):
    lines = [json.loads(line) for line in open(os.path.join(DATA, name))]
    asked = [json.dumps({k: line[k] for k in ("text", "b64", "parse_special") if k in line}) for line in lines]
    code, got, _ = ask(asked)
    check(f"{name}: {len(lines)} answers", len(got) == len(lines) and code == 0, (code, len(got)))
    wrong = [(line, a) for line, a in zip(lines, got) if a != {"ids": line["ids"]}]
    check(f"{name}: exact ids", not wrong, wrong[:1])


def parts():
    code, got, _ = ask(['{"text":"<|im_end|>"}', '{"text":"<|im_end|>","parse_special":true}', '{"text":""}',
                        json.dumps({"b64": base64.b64encode(b"a\0b\xff").decode()})])
    check("control words are letters unless asked for", code == 0 and len(got[0]["ids"]) > 1 and got[1]["ids"] == [2], got)
    check("no text, no ids", got[2] == {"ids": []}, got[2])
    check("any bytes in base64", len(got[3]["ids"]) == 4 and got[3]["ids"][1] == 190, got[3])
    same, _, _ = ask(['{"text":"a"}'] * 1000)
    check("a thousand lines", same == 0)


def bad_lines():
    bad = ['{"text":"a\\u0004b"}', "not json", "{}", '{"text":5}', '{"text":"a","b64":"YQ=="}', '{"b64":"?"}', "", "[1]",
           '{"text":"a","parse_special":1}', '{"text":"x\\u0000"}', '{"text":"\\ud8c0\\udc00"}']
    code, got, _ = ask([line for b in bad for line in (b, '{"text":"hi"}')])
    check("every line is answered in its place", len(got) == 2 * len(bad) and all(a == {"ids": [6004]} for a in got[1::2]), got)
    for line, a in zip(bad, got[::2]):
        check(f"{line!r}: an error", list(a) == ["error"] and isinstance(a["error"], str) and a["error"], a)
    check("refused by name and place", got[0]["error"] == "U+0004 at character 1 cannot be encoded by this model", got[0])
    check("exit status 1 at the end", code == 1, code)


def at_once():
    p = subprocess.Popen([PROGRAM, "tokenize", "-m", MODEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    for _ in range(3):
        p.stdin.write(b'{"text":"hi"}\n')
        p.stdin.flush()
        check("an answer before the next question", json.loads(p.stdout.readline()) == {"ids": [6004]})
    p.stdin.write(b'{"text":"hi"}')  # the last line need not end
    p.stdin.close()
    check("the last line", json.loads(p.stdout.readline()) == {"ids": [6004]})
    check("exit status 0", p.wait(20) == 0)


def arguments():
    code, out, _ = run("tokenize", "--help")
    check("--help", code == 0 and "parse_special" in out and "--model" in out, (code, out))
    for args, word in (((), "-m"), (("-m", "/nowhere/x.gguf"), "x.gguf"), (("-m", MODEL, "more"), "arguments"),
                       (("--no-such-option",), "option")):
        code, _, said = run("tokenize", *args)
        check(f"tokenize {' '.join(args)}: refused", code not in (0, None) and code > 0 and word in said, (code, said))


golden("tokenizer.jsonl")
golden("corners.jsonl")
parts()
bad_lines()
at_once()
arguments()
finish()
