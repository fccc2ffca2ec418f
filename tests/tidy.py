#!/usr/bin/env python3
"""Checks the rules of this repository that a compiler does not: tests/tidy.py [--self-test]

Prints one line per finding, "file:line: what is wrong; what to do", and ends with exit status 1 when there is any.
--self-test plants one fault per rule in memory and demands that exactly its rule finds it. Python 3 standard library only.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("api", "agent", "episodes", "kvq", "kernels", "store")
PUBLIC_HEADERS = ("api/api.h", "agent/agent.h", "episodes/episodes.h", "kvq/kvq.h", "store/store.h", "kernels/kernels.h",
                  "kernels/base.h", "kernels/cuda/cuda.h")
LAYOUT_HEADERS = ("kernels/fragment.h",)  # bytes that two folders must agree on: kernels and kvq
MAY_INCLUDE = {
    "api": ("agent",),
    "agent": ("episodes", "kvq", "kernels", "store"),
    "episodes": ("kvq", "kernels"),
    "kvq": ("kernels",),
    "kernels": (),
    "store": (),
}
OWNED_HEADERS = {"lmdb.h": ("store",), "uv.h": ("api",), "cblas.h": ("kernels", "kvq"), "lapacke.h": ("kvq",)}

# codecs without a golden page of their own, and why
GOLDEN_ELSEWHERE = {"bf16": "codes nothing", "hadamard": "the pages of naive, behind a rotation that the tests of kernels pin"}

FILE_LINES_MAX, FUNCTION_LINES_MAX, KERNEL_LINES_MAX, PUBLIC_HEADER_LINES_MAX = 800, 70, 150, 250
FILE_BYTES_MAX = 256 * 1024

# name, why and what instead, files where it may be (a trailing / means the folder), whether tests are held to it
BANNED_CALLS = (
    ("malloc|calloc|realloc|free|aligned_alloc|posix_memalign|strdup|strndup|asprintf|getline",
     "memory comes from base_alloc and its family",
     ("kernels/base.c", "api/chat_main.c"), False),  # chat reads with getline, which allocates
    ("exit|abort|quick_exit", "return a status; a mistake of our own is a REQUIRE", ("kernels/base.c", "api/main.c"), False),
    ("assert", "REQUIRE of kernels/base.h is always on", (), False),
    ("getenv|secure_getenv", "settings are read in api/config.c and handed down", ("api/config.c",), False),
    ("mdb_[a-z_]+", "LMDB is used through store/store.h", ("store/",), False),
    ("strcpy|strcat|strncat|stpcpy", "memcpy with a length that was checked, or snprintf", (), True),
    ("sprintf|vsprintf", "snprintf with the size of the array", (), True),
    ("atoi|atol|atoll|atof", "strtol or strtod with a look at where they ended", (), True),
    ("strtok", "strcspn and a pointer of your own", (), True),
    ("gets", "fgets", (), True),
)

CODE = re.compile(r"\.(c|h|cu|cuh|def)$")
LONG_CHECKED = re.compile(r"\.(c|h|cu|cuh|py|sh)$")


# ---- reading ----

def list_paths():
    """Files of the repository, committed or about to be; without git: everything that is no build output."""
    try:
        out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
        paths = set(filter(None, out.decode().split("\0")))
    except (OSError, subprocess.CalledProcessError):
        paths = set()
        for folder, folders, names in os.walk(ROOT):
            here = os.path.relpath(folder, ROOT)
            folders[:] = [f for f in folders if f not in (".git", "models", ".cache", ".venv", "__pycache__")
                          and not (here == "." and re.match(r"build($|-)", f))]
            paths |= {os.path.normpath(os.path.join(here, name)) for name in names}
    return sorted(p for p in paths if os.path.isfile(os.path.join(ROOT, p)))


def read_tree():
    tree = {}
    for path in list_paths():
        with open(os.path.join(ROOT, path), "rb") as f:
            tree[path] = f.read()
    return tree


def text_of(data):
    """Its text, or None when it is binary."""
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def strip_code(text, keep_strings=False):
    """C without comments and (but for #include) strings; line numbers stay."""
    def blank(match):
        token = match.group(0)
        if token[0] == '"' and keep_strings:
            return token
        return token[0] + token[-1] if token[0] in "\"'" else "\n" * token.count("\n") or " "
    return TOKEN.sub(blank, text)


def code_files(tree):
    """(path, text, folder) of C and CUDA sources."""
    for path, data in tree.items():
        text = text_of(data) if CODE.search(path) and not path.startswith("tests/data/") else None
        if text is not None:
            yield path, text, path.split("/")[0]


# ---- rules: each yields (path, line, message) ----

def rule_include_direction(tree):
    for path, text, folder in code_files(tree):
        for number, line in enumerate(strip_code(text, True).split("\n"), 1):
            match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
            if not match:
                continue
            bracket, header = match.groups()
            owners = OWNED_HEADERS.get(header)
            if owners and folder in FOLDERS and folder not in owners:
                yield path, number, f"<{header}> belongs to {owners[0]}/; go through its public header"
            target = header.split("/")[0]
            if bracket == "<" or folder not in FOLDERS:
                continue
            if target == "tests":
                yield path, number, f"\"{header}\": the product does not include tests; move what is shared out of tests/"
            elif target not in FOLDERS:
                yield path, number, f"\"{header}\": write the path from the top folder, as in \"{folder}/{header}\""
            elif target != folder:
                yield from check_foreign_include(path, number, folder, target, header)


def check_foreign_include(path, number, folder, target, header):
    if header == "kernels/base.h":
        return
    if target not in MAY_INCLUDE[folder]:
        allowed = ", ".join(MAY_INCLUDE[folder]) or "nothing but kernels/base.h"
        yield path, number, f"{folder} must not include \"{header}\": it may see {allowed}; move the code or pass a callback"
    elif header not in PUBLIC_HEADERS and not (header in LAYOUT_HEADERS and folder == "kvq"):
        yield path, number, f"\"{header}\" stays inside {target}/; use {target}'s public header or add to it"


def rule_public_header(tree):
    present = {path.split("/")[0] for path in tree}
    for header in PUBLIC_HEADERS:
        text = text_of(tree.get(header, b""))
        if header.split("/")[0] not in present:
            continue
        if not text:
            yield header, 1, "each folder has one public header of its name; write it"
            continue
        lines = text.count("\n")
        if lines > PUBLIC_HEADER_LINES_MAX:
            yield header, PUBLIC_HEADER_LINES_MAX, (f"{lines} lines; a public header has at most {PUBLIC_HEADER_LINES_MAX}: "
                                                    "move what callers do not need into an _internal.h")
        if not text.startswith("/*"):
            yield header, 1, "a public header opens with its mental model: begin with a comment"
    for path in tree:
        known = path in PUBLIC_HEADERS or path in LAYOUT_HEADERS
        folder, _, name = path.partition("/")
        if folder in FOLDERS and name == folder + "s.h" and not known:
            yield path, 1, f"{folder}/ has its public header already; name this one *_internal.h"


def rule_file_length(tree):
    for path, data in tree.items():
        text = text_of(data) if LONG_CHECKED.search(path) else None
        if text is not None and text.count("\n") > FILE_LINES_MAX:
            yield path, FILE_LINES_MAX, f"{text.count(chr(10))} lines; at most {FILE_LINES_MAX}: split it by what its parts do"


def rule_function_length(tree):
    """Bodies begin and end with a brace in the first column (the formatter sees to that)."""
    for path, text, folder in code_files(tree):
        lines, start = strip_code(text).split("\n"), None
        for number, line in enumerate(lines, 1):
            if line.rstrip() == "{":
                start = number
            elif start and re.match(r"}\s*$", line):
                yield from check_function(path, folder, text.split("\n"), start, number - start - 1)
                start = None


def check_function(path, folder, lines, start, length):
    if length <= FUNCTION_LINES_MAX:
        return
    above = "\n".join(lines[max(0, start - 16):start])
    reason = re.search(r"[Ll]ong because", above) is not None
    if folder == "kernels" and reason and length <= KERNEL_LINES_MAX:
        return
    hint = f"; a kernel may have {KERNEL_LINES_MAX} with a comment above it that says \"Long because ...\"" \
        if folder == "kernels" else ""
    yield path, start, f"a function of {length} lines; at most {FUNCTION_LINES_MAX}: give its parts names{hint}"


def rule_banned_calls(tree):
    rules = [(re.compile(r"(?<![\w.>])(%s)\s*\(" % names), hint, allowed, tests)
             for names, hint, allowed, tests in BANNED_CALLS]
    for path, text, folder in code_files(tree):
        for number, line in enumerate(strip_code(text).split("\n"), 1):
            for pattern, hint, allowed, tests in rules:
                match = pattern.search(line) if folder in FOLDERS or tests else None
                if match and not any(path == a or (a.endswith("/") and path.startswith(a)) for a in allowed):
                    yield path, number, f"{match.group(1)}() is not used here: {hint}"
            if folder in FOLDERS and re.search(r"#\s*include\s*<assert\.h>", line):
                yield path, number, "assert.h vanishes in releases: REQUIRE of kernels/base.h is always on"


def rule_leftovers(tree):
    words = re.compile(r"\b(FIX" r"ME|XX" r"X|HA" r"CK)\b")
    places = re.compile(r"(?<![\w.~])/(?:work|home|root|Users)/\w")
    for path, data in tree.items():
        text = text_of(data)
        if text is None or path.startswith(("tests/data/", "tests/fuzz/corpus/")):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if words.search(line):
                yield path, number, f"a left-over {words.search(line).group(1)}: do it, or open an issue and name it in a TODO"
            if places.search(line):
                yield path, number, "a path of one machine: make it relative, or an option"


def rule_file_size(tree):
    for path, data in tree.items():
        if len(data) > FILE_BYTES_MAX:
            yield path, 1, f"{len(data)} bytes; at most {FILE_BYTES_MAX}: make a smaller sample, or make it when needed"


def rule_goldens(tree):
    """A codec has a golden page that a script made, not the codec itself; variants of NAME+ share that of NAME+."""
    for number, line in enumerate((text_of(tree.get("kvq/codecs.def", b"")) or "").split("\n"), 1):
        match = re.match(r'X\("([^"]+)"', line)
        name = re.sub(r"\+.*", "+", match.group(1)) if match else None
        if name and name not in GOLDEN_ELSEWHERE and not any(
                re.fullmatch(r"tests/data/(kvq/%s|oscar_plus/%s)-\d+-\d+(-k\d)?\.page" % (re.escape(name), re.escape(
                    name.replace("+", "-plus"))), path) for path in tree):
            yield "kvq/codecs.def", number, (f"codec {match.group(1)} has no golden page: add it to "
                                             "tests/golden-tools/kvq_goldens.py and to tests/unit/test_kvq_page.c")


def rule_corpora(tree):
    topics = {m.group(1): p for p in tree if (m := re.fullmatch(r"tests/fuzz/fuzz_(\w+)\.c", p))}
    corpora = {p.split("/")[3] for p in tree if p.startswith("tests/fuzz/corpus/") and p.count("/") > 3}
    for topic in sorted(set(topics) - corpora):
        yield topics[topic], 1, f"no inputs to replay: put some into tests/fuzz/corpus/{topic}/"
    for topic in sorted(corpora - set(topics)):
        yield f"tests/fuzz/corpus/{topic}", 1, f"nothing reads it: write tests/fuzz/fuzz_{topic}.c or remove it"


# ---- rules that run a program ----

def compile_flags(path):
    flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", '-DEPIMEM_VERSION=""', "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    if "avx512" in path:
        flags += ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"]
    elif "avx2" in path:
        flags += ["-mavx2", "-mfma", "-mf16c"]
    return flags


def write_files(root, tree, paths):
    for path in paths:
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        with open(os.path.join(root, path), "wb") as f:
            f.write(tree[path])


def library_flags():
    try:
        return subprocess.run(["pkg-config", "--cflags", "libuv", "lmdb", "libcjson", "libxxhash", "libutf8proc", "lapacke",
                               "openblas"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    except (OSError, subprocess.CalledProcessError):
        return []


def rule_headers_alone(tree):
    """Each header compiles when it is the only include, so the order of includes never matters."""
    compiler = os.environ.get("CC", "cc")
    headers = [p for p in tree if re.match(r"(%s)/.*\.h$" % "|".join(FOLDERS), p) and not p.endswith("_body.h")]
    libraries = library_flags()

    def compile_one(root, path):
        # Twice, so that a missing guard is seen; unused static functions are no fault of a header.
        source = f'#include "{path}"\n#include "{path}"\ntypedef int some_declaration;\n'
        return subprocess.run([compiler, *compile_flags(path), "-Wno-unused-function", "-I", root, *libraries, "-x", "c", "-"],
                              input=source.encode(), cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    with tempfile.TemporaryDirectory() as root:
        write_files(root, tree, headers + [p for p in tree if p.endswith(".def") or p.endswith("_body.h")])
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for path, done in zip(headers, pool.map(lambda p: compile_one(root, p), headers)):
                if done.returncode:
                    first = next((x for x in done.stdout.decode(errors="replace").split("\n") if "error" in x), "?")
                    yield path, 1, f"does not compile alone, twice: include what it needs, guard it ({first.strip()})"


def find_formatter():
    """clang-format 14: other versions lay out some things differently."""
    for name in ("clang-format-14", "clang-format"):
        if shutil.which(name) and b"version 14." in subprocess.run([name, "--version"], stdout=subprocess.PIPE, check=False).stdout:
            return name
    return None


def rule_format(tree):
    formatter = find_formatter()
    if not formatter:
        print("tidy: clang-format 14 is not installed; formatting was not looked at", file=sys.stderr)
        return
    paths = [path for path in tree if re.search(r"\.(c|h|cu|cuh)$", path)]
    with tempfile.TemporaryDirectory() as root:
        write_files(root, tree, paths)
        shutil.copy(os.path.join(ROOT, ".clang-format"), root)
        out = subprocess.run([formatter, "--dry-run", "--style=file", *paths], cwd=root, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, check=False).stdout.decode(errors="replace")
    seen = set()
    for path, number in re.findall(r"^([^\s:]+):(\d+):\d+: warning: code should be clang-formatted", out, re.M):
        if path not in seen:
            seen.add(path)
            yield path, int(number), f"not as .clang-format says: run {formatter} -i {path}"


RULES = (rule_include_direction, rule_public_header, rule_file_length, rule_function_length, rule_banned_calls,
         rule_leftovers, rule_file_size, rule_goldens, rule_corpora, rule_headers_alone, rule_format)


# ---- self-test: one planted fault per way to break a rule ----

def good_tree():
    """A small repository without a finding."""
    tree = {header: f"/* {header}: what it is. */\n#ifndef G_{i}\n#define G_{i}\n#endif\n"
            for i, header in enumerate(PUBLIC_HEADERS)}
    tree["kvq/codecs.def"] = 'X("plain", kvq_open_plain)\nX("bf16", kvq_open_bf16)\n'
    tree["tests/data/kvq/plain-64-128.page"] = "bytes"
    tree["tests/fuzz/fuzz_line.c"] = "int line;\n"
    tree["tests/fuzz/corpus/line/one"] = "input"
    tree["agent/session.c"] = '#include "agent/agent.h"\n#include "kvq/kvq.h"\n/* malloc(1) in a comment, "free(x)" too */\n'
    tree["store/read.c"] = '#include <lmdb.h>\n\n#include "kernels/base.h"\n'
    return tree


def long_function(lines, comment=""):
    return comment + "void f(int x);\nvoid f(int x)\n{\n" + "    g(x);\n" * lines + "}\n"


PLANTED = (
    (rule_include_direction, "store/a.c", '#include "agent/agent.h"\n', "store must not include"),
    (rule_include_direction, "kernels/a.c", '#include "kvq/kvq.h"\n', "kernels must not include"),
    (rule_include_direction, "api/a.c", '#include "store/store.h"\n', "api must not include"),
    (rule_include_direction, "episodes/a.c", '#include "agent/agent.h"\n', "episodes must not include"),
    (rule_include_direction, "api/a.c", '#include "agent/engine_internal.h"\n', "stays inside agent/"),
    (rule_include_direction, "agent/a.c", '#include "kvq/page.h"\n', "stays inside kvq/"),
    (rule_include_direction, "agent/a.c", '#include "agent.h"\n', "path from the top folder"),
    (rule_include_direction, "agent/a.c", '#include "tests/unit/vectors.h"\n', "does not include tests"),
    (rule_include_direction, "agent/a.c", "#include <lmdb.h>\n", "belongs to store/"),
    (rule_public_header, "kvq/kvq.h", "/* */\n" + "\n" * 250, "at most 250"),
    (rule_public_header, "kvq/kvq.h", "int x;\n", "begin with a comment"),
    (rule_public_header, "kvq/kvq.h", "", "write it"),
    (rule_file_length, "kvq/a.c", "int x;\n" * 801, "at most 800"),
    (rule_function_length, "kvq/a.c", long_function(71), "a function of 71 lines"),
    (rule_function_length, "kernels/a.c", long_function(71), "Long because"),
    (rule_function_length, "kernels/a.c", long_function(151, "/* Long because of its registers. */\n"), "of 151 lines"),
    (rule_banned_calls, "kvq/a.c", "p = malloc(1);\n", "base_alloc"),
    (rule_banned_calls, "kvq/a.c", "free(p);\n", "base_alloc"),
    (rule_banned_calls, "kvq/a.c", "exit(1);\n", "return a status"),
    (rule_banned_calls, "kvq/a.c", "abort();\n", "return a status"),
    (rule_banned_calls, "kvq/a.c", 'x = getenv("A");\n', "api/config.c"),
    (rule_banned_calls, "kvq/a.c", "mdb_env_close(e);\n", "store/store.h"),
    (rule_banned_calls, "kvq/a.c", "#include <assert.h>\n", "REQUIRE"),
    (rule_banned_calls, "kvq/a.c", "assert(x);\n", "REQUIRE"),
    (rule_banned_calls, "tests/unit/a.c", "strcpy(a, b);\n", "snprintf"),
    (rule_banned_calls, "tests/unit/a.c", "strcat(a, b);\n", "snprintf"),
    (rule_banned_calls, "tests/unit/a.c", 'sprintf(a, "b");\n', "snprintf"),
    (rule_banned_calls, "tests/unit/a.c", "x = atoi(a);\n", "strtol"),
    (rule_banned_calls, "tests/unit/a.c", "x = strtok(a, b);\n", "strcspn"),
    (rule_banned_calls, "tests/unit/a.c", "gets(a);\n", "fgets"),
    (rule_leftovers, "kvq/a.c", "/* FIX" "ME: later */\n", "left-over"),
    (rule_leftovers, "docs/a.md", "see /" "home/me/notes\n", "one machine"),
    (rule_file_size, "docs/a.bin", "\0" * (FILE_BYTES_MAX + 1), "at most 262144"),
    (rule_goldens, "kvq/codecs.def", 'X("other", kvq_open_other)\n', "codec other has no golden page"),
    (rule_corpora, "tests/fuzz/fuzz_new.c", "int x;\n", "no inputs to replay"),
    (rule_corpora, "tests/fuzz/corpus/old/one", "x", "nothing reads it"),
    (rule_headers_alone, "kvq/a_internal.h", "#ifndef A\n#define A\nvoid f(size_t n);\n#endif\n", "does not compile alone"),
    (rule_headers_alone, "kvq/a_internal.h", "struct a {\n    int x;\n};\n", "does not compile alone"),
    (rule_format, "kvq/a.c", "int  x;\n", "not as .clang-format says"),
)


def findings_of(rule, tree):
    return list(rule({path: text.encode() for path, text in tree.items()}))


def self_test():
    wrong = 0
    for rule in RULES:
        for path, number, message in findings_of(rule, good_tree()):
            wrong += 1
            print(f"{rule.__name__} finds a fault where there is none: {path}:{number}: {message}")
    good = {"kernels/a.c": long_function(150, "/* Long because of its registers. */\n"), "kvq/a.c": long_function(70),
            "api/config.c": 'x = getenv("A");\n', "kernels/base.c": "free(p);\nabort();\n",
            "kvq/b.c": "a.free(x);\na->free(x);\nmy_malloc(x);\n"}
    for rule in (rule_function_length, rule_banned_calls):
        for path, number, message in findings_of(rule, {**good_tree(), **good}):
            wrong += 1
            print(f"{rule.__name__} finds a fault where there is none: {path}:{number}: {message}")
    for rule, path, text, expected in PLANTED:
        if rule is rule_format and not find_formatter():
            continue
        found = findings_of(rule, {**good_tree(), path: text})
        if not any(message.find(expected) >= 0 and at.startswith(os.path.dirname(path)) for at, _, message in found):
            wrong += 1
            print(f"{rule.__name__} does not see {text[:60]!r} in {path}; it found {found}")
    untested = {rule.__name__ for rule in RULES} - {planted[0].__name__ for planted in PLANTED}
    if untested:
        wrong += 1
        print("no fault is planted for " + ", ".join(sorted(untested)))
    print(f"tidy --self-test: {len(PLANTED)} planted faults, {wrong} not as expected")
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    tree, n_findings = read_tree(), 0
    for rule in RULES:
        for path, number, message in rule(tree):
            n_findings += 1
            print(f"{path}:{number}: {message}")
    print(f"tidy: {len(tree)} files, {n_findings} findings")
    return 1 if n_findings else 0


if __name__ == "__main__":
    sys.exit(main())
