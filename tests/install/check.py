"""check.py BUILD CMAKE [model]: installs the build into a temporary folder and compiles embed.c against what lies there,
with nothing of the repository in reach. With "model" the program also answers a question with the real models.
"""
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "models")


def run(arguments, **options):
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options)
    print("$", " ".join(arguments), "\n" + done.stdout.decode(errors="replace"), flush=True)
    return done


def main():
    build, cmake, model = sys.argv[1], sys.argv[2], sys.argv[3:] == ["model"]
    with tempfile.TemporaryDirectory(prefix="epimem-install-") as folder:
        assert run([cmake, "--install", build, "--prefix", os.path.join(folder, "first")]).returncode == 0
        prefix = os.path.join(folder, "moved")  # nothing installed may know where it was installed to
        os.rename(os.path.join(folder, "first"), prefix)
        found = [os.path.join(at, "epimem.pc") for at, _, names in os.walk(prefix) if "epimem.pc" in names]
        assert len(found) == 1, found
        env = {**os.environ, "PKG_CONFIG_PATH": os.path.dirname(found[0])}
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "epimem"], env=env, stdout=subprocess.PIPE,
                               check=True).stdout.decode().split()
        shutil.copy(os.path.join(HERE, "embed.c"), folder)
        extra = os.environ.get("EPIMEM_TEST_LINK_FLAGS", "").split()
        compiled = run([os.environ.get("CC", "cc"), "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror",
                        *extra, "embed.c", "-o", "embed", *flags], cwd=folder)
        assert compiled.returncode == 0
        program = os.path.join(folder, "embed")
        version = run([os.path.join(prefix, "bin", "epimem"), "version"])
        assert version.returncode == 0 and b"epimem" in version.stdout
        refused = run([program, "no-model.gguf", "no-encoder", "?"])
        assert refused.returncode == 1 and b"no-model.gguf" in refused.stdout
        if model:
            answer = run([program, os.path.join(MODELS, "SmolLM2-135M-Instruct.Q4_1.gguf"),
                          os.path.join(MODELS, "all-MiniLM-L6-v2"), "Name the capital city of France."])
            assert answer.returncode == 0 and b"Paris" in answer.stdout


main()
