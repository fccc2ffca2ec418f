"""Makes tests/data/tokenizer/{pretokenize.jsonl, small_*.gguf, small_ids.jsonl} with Hugging Face tokenizers.

    python3 tests/golden-tools/tokenizer_goldens.py

Needs tokenizers, gguf. The rules' regular expressions are those of the published tokenizer files (GPT-2, SmolLM2, Llama 3,
Qwen2); characters are limited to those of Unicode 14, so that the answer does not depend on whose tables are newer.
"""
import base64
import json
import os
import random
import unicodedata

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "data", "tokenizer")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated", invert=False), byte_level(False)])


RULES = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)]),
    "gpt-2": byte_level(True),
    "llama-bpe": split(LLAMA3),
    "qwen2": split(QWEN2),
}
POOLS = ["abcXYZ", "0123456789", "    ", "\t\n\r", "'", "!?.,-_()#<|>", "\u00a0\u2003\u3000\u0085\u2028\u1680", "½²Ⅷ٣①",
         "éßſKŉﬆǅ五ªʰ", "\u0301\u0308\u200b\ufeff\u200d", "😀你好한"]
WORDS = ["'s", "'S", "'re", "'RE", "'ll", "'lL", "'ſ", "'K", "'ﬆ", "'m", "'T", "'d", " the", " and", "ing", "1980", "hello"]
FIXED = ["", " ", "a   b", "a   5", "x  7 8", "1980's", "12345 67", "foo\r\n\r\n  bar", "  \n  \n x", "!!\n\n", " ?!\r\nx",
         "don't DON'T", "\tx\t1\t!", "end  ", "\n", "\r\n", "a\n", " \n", "\n ", "'", "''s", "5's", "№5", "　五", "½ cup"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im", "<|im_start|>user"]
USER_DEFINED = ["<think>", "  "]


def random_text(rnd, assigned, specials=()):
    out = []
    for _ in range(rnd.randint(1, 12)):
        k = rnd.random()
        if k < 0.1:
            out.append(rnd.choice(assigned))
        elif k < 0.25:
            out.append(rnd.choice(WORDS))
        elif k < 0.4 and specials:
            out.append(rnd.choice(specials))
        else:
            pool = rnd.choice(POOLS)
            out.append("".join(rnd.choice(pool) for _ in range(rnd.randint(1, 4))))
    return "".join(out)


def line(f, **members):
    f.write(json.dumps(members, separators=(",", ":")) + "\n")


def pieces(rnd, assigned):
    with open(os.path.join(OUT, "pretokenize.jsonl"), "w") as f:
        for name, rule in RULES.items():
            for text in FIXED + [random_text(rnd, assigned) for _ in range(200)]:
                sizes = [len(piece) for piece, _ in rule.pre_tokenize_str(text)]  # one character of the alphabet a byte
                line(f, rule=name, b64=base64.b64encode(text.encode()).decode(), pieces=sizes)


def vocabulary(rnd, assigned):
    """A trained vocabulary of 256 bytes and 200 merges, and two words that no merge makes."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = byte_level(True)
    texts = [random_text(rnd, assigned) for _ in range(2000)]
    with open(os.path.join(OUT, "tokenizer.jsonl")) as f:
        texts += [r["text"] for r in map(json.loads, f) if "text" in r]
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=456, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    made = json.loads(t.to_str())["model"]
    trained = sorted(made["vocab"], key=made["vocab"].get)
    tokens = SPECIALS + USER_DEFINED + trained + ["Ġtheing", "helloand"]
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in made["merges"]]
    return tokens, merges


def tokenizer(rule, tokens, merges):
    normal = {t: i for i, t in enumerate(tokens) if t not in SPECIALS + USER_DEFINED}
    size = len(SPECIALS) + len(USER_DEFINED)
    t = Tokenizer(models.BPE(vocab={**{s: i for i, s in enumerate(tokens[:size])}, **normal}, merges=merges,
                             ignore_merges=rule == "llama-bpe"))
    t.pre_tokenizer = RULES[rule]
    t.decoder = decoders.ByteLevel()
    return t


def write_gguf(path, rule, tokens, merges):
    w = gguf.GGUFWriter(path, "llama")
    types = [3] * len(SPECIALS) + [4] * len(USER_DEFINED)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(rule)
    w.add_token_list(tokens)
    w.add_token_types(types + [1] * (len(tokens) - len(types)))
    w.add_token_merges([" ".join(m) for m in merges])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_chat_template("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}"
                        "{% endfor %}")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    rnd = random.Random(20240601)
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    pieces(rnd, assigned)
    tokens, merges = vocabulary(rnd, assigned)
    with open(os.path.join(OUT, "small_ids.jsonl"), "w") as f:
        for rule in RULES:
            write_gguf(os.path.join(OUT, f"small_{rule}.gguf"), rule, tokens, merges)
            plain, special = tokenizer(rule, tokens, merges), tokenizer(rule, tokens, merges)
            special.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
            special.add_tokens([AddedToken(s, normalized=False) for s in USER_DEFINED])
            for i in range(160):
                text = (FIXED[i] if i < len(FIXED) else random_text(rnd, assigned, SPECIALS + USER_DEFINED))
                text += " theing helloand" if i % 7 == 0 else ""
                for parse, t in ((False, plain), (True, special)):
                    if not parse and i >= 100:
                        continue
                    line(f, rule=rule, b64=base64.b64encode(text.encode()).decode(), parse_special=parse,
                         ids=t.encode(text, add_special_tokens=False).ids)


main()
