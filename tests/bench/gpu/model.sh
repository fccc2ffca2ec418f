#!/bin/bash
# The whole model on the card of this machine: checks, then times. From the repository root, after a build with CUDA:
#   tests/bench/gpu/model.sh [ops] [tiny] [default] [greedy] [products] [bench] [shape] [sanitize]   default: all, in order
# shape: an 8B model with random weights (SHAPE, KIND; make_shape.py), written to SHAPE_DIR.
# Output goes to ${OUT:-build-gpu}/model-*.txt as well. BUILD is the build folder, MODEL the model to time.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
build=${BUILD:-build} out=${OUT:-build-gpu} model=${MODEL:-models/SmolLM2-135M-Instruct.Q4_1.gguf}
mkdir -p "$out"

# timeout for programs and for functions of this file
within() {
    if [ "$(type -t "$2")" = function ]; then
        "${@:2}"
    else
        timeout "$@"
    fi
}

step() { # name, seconds, command...
    local name=$1 seconds=$2
    shift 2
    echo "==== $name ($(date +%T))"
    within "$seconds" "$@" >"$out/model-$name.txt" 2>&1
    echo "exit $?" >>"$out/model-$name.txt"
    tail -"${LINES_SHOWN:-40}" "$out/model-$name.txt"
}

# The same prompt here and there, and how many tokens agree.
greedy() {
    local device
    for device in cpu cuda; do
        echo '{"messages":[{"role":"user","content":"Write a short story about a fox and a river."}],"max_tokens":64}' |
            "$build/epimem" generate -m "$model" --device "$device" || return 1
    done
}

sanitize() {
    local tool
    for tool in memcheck racecheck initcheck; do
        for test in test_cuda_ops test_cuda_model; do
            echo "$tool $test"
            timeout "${SANITIZE_SECONDS:-40}" compute-sanitizer --tool "$tool" "$build/tests/$test" 2>&1 | tail -12
        done
    done
}

for name in ${*:-ops tiny default greedy products bench shape sanitize}; do
    case $name in
    ops) step ops 60 "$build/tests/test_cuda_ops" ;;
    tiny) step tiny 60 "$build/tests/test_cuda_model" ;;
    default) step default 90 "$build/tests/test_cuda_forward_model" ;;
    greedy) step greedy 60 greedy ;;
    products) LINES_SHOWN=100 step products 90 "$build/tests/bench_products" ;;
    shape)
        file=${SHAPE_DIR:-/dev/shm}/shape-${SHAPE:-8b}-${KIND:-q8_0}.gguf
        [ -f "$file" ] || step "make-${KIND:-q8_0}" 100 python3 tests/bench/gpu/make_shape.py "$file" "${SHAPE:-8b}" "${KIND:-q8_0}"
        step "shape-${SHAPE:-8b}-${KIND:-q8_0}" "${BENCH_SECONDS:-120}" "$build/epimem" bench -m "$file" --device cuda \
            -d "${DEPTHS:-0,8000,102400}" -p 512 -n 64 -r 3 --sequences "${SEQUENCES:-1,8,32}" --json
        ;;
    bench)
        nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv
        step bench "${BENCH_SECONDS:-60}" "$build/epimem" bench -m "$model" --device cuda -d "${DEPTHS:-0,2112,7232}" -p 512 \
            -n 128 --json
        ;;
    sanitize) step sanitize 240 sanitize ;;
    esac
done
