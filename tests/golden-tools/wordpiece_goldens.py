"""Makes tests/data/tokenizer/wordpiece.jsonl: ids of all-MiniLM-L6-v2 for texts that try the corners of its rules; and
wordpiece_kinds.json: what becomes of each code point from U+0080 on between two digits, as runs of equal kind.

    python3 tests/golden-tools/wordpiece_goldens.py MODEL_FOLDER

Needs tokenizers. At most 256 ids, [CLS] and [SEP] included.
"""
import base64
import json
import os
import random
import sys
import unicodedata

from tokenizers import Tokenizer

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tokenizer")
FIXED = ["don't stop", "a\u0085b", "x\u00a0y", "\u2260 \u1fef \u037e", "\u212b\u2126\u1e9b\u0323", "\u01c5\u0130\u00df\u03a3",
         "\u1734a\u166db\U000111c9c", "a\u061db\u0890c\u1abfd\u2e52e", "\ufdfa \ufb01", "\uac00\uac01", "\u4e00a\uf900b\U0002b820c",
         "\U0001f469\u200d\U0001f52c", "a" * 99 + "\u0301 b", "a" * 100 + "\u0301 b", "a" * 100 + "b c", "\u00e9" * 100,
         "\u00e9" * 101, "[CLS][SEP]x[MASK]y[PAD]z[UNK]", "[CLS [SEP]] [[MASK]]", "x " * 300, "!" * 300, "## ##ing #ing",
         "a\u0000b\ufffdc\u0007d", "\u00adsoft\u00ad", "\ue000private\U000f0000", "tab\there", "\u2028\u2029"]


def kind(t, c):
    """dropped (one word, 12), plain (one other word), space (two words) or apart (a word of its own between two)."""
    words = [w for w, _ in t.pre_tokenizer.pre_tokenize_str(t.normalizer.normalize_str("1" + c + "2"))]
    return {1: "dropped" if words == ["12"] else "plain", 2: "space", 3: "apart"}[len(words)]


def kinds(t):
    runs = []
    for c in range(0x80, 0x110000):
        k = runs[-1]["kind"] if 0xD800 <= c < 0xE000 else kind(t, chr(c))
        if not runs or runs[-1]["kind"] != k:
            runs.append({"kind": k, "n": 0})
        runs[-1]["n"] += 1
    with open(os.path.join(OUT, "wordpiece_kinds.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in runs) + "\n]\n")


def main():
    rnd = random.Random(7)
    t = Tokenizer.from_file(os.path.join(sys.argv[1], "tokenizer.json"))
    t.no_padding()
    t.enable_truncation(256)
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    parts = ["the ", "ing", " run", "[SEP]", "\u00e9", "!", " ", "un", "believ", "able", "5"]
    texts = FIXED + ["".join(rnd.choice(assigned) if rnd.random() < 0.3 else rnd.choice(parts) for _ in range(rnd.randint(1, 30)))
                     for _ in range(100)]
    with open(os.path.join(OUT, "wordpiece.jsonl"), "w") as f:
        for text in texts:
            f.write(json.dumps({"b64": base64.b64encode(text.encode()).decode(), "ids": t.encode(text).ids},
                               separators=(",", ":")) + "\n")
    kinds(t)


main()
