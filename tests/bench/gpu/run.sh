#!/bin/bash
# Builds, checks and times the CUDA attention on the card of this machine, in a few minutes. From the repository root:
#   tests/bench/gpu/run.sh [build] [check] [sanitize] [time] [torch] [profile]      default: all, in that order
# Output goes to ${OUT:-build-gpu}/attend-*.txt as well. ARCH=90 by default; BUILD is the folder for binaries.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
build=${BUILD:-build-gpu} out=${OUT:-build-gpu} arch=${ARCH:-90}
mkdir -p "$build" "$out"
steps=${*:-build check sanitize time torch profile}

# Objects newer than all sources are kept, so that binaries brought along are used.
compile() { # object, source, command...
    local object=$1 source=$2
    shift 2
    if [ -f "$object" ] && [ -z "$(find kernels tests/bench/gpu kvq/page.h -name '*.[ch]*' -newer "$object" -print -quit)" ]; then
        return 0
    fi
    "$@" -c "$source" -o "$object"
}

build_variant() { # name, flags: attention with or without bulk copies
    local name=$1 d pids=()
    shift
    for d in d64 d128 d256 launch; do
        compile "$build/attend_$d$name.o" "kernels/cuda/attend_$d.cu" nvcc -std=c++17 -O3 -lineinfo -I. \
            -gencode="arch=compute_$arch,code=sm_$arch" -Xcompiler -Wall,-Wextra "$@" &
        pids+=($!)
    done
    compile "$build/bench_attend.o" tests/bench/gpu/bench_attend.cu nvcc -std=c++17 -O3 -I. \
        -gencode="arch=compute_$arch,code=sm_$arch" -Xcompiler -Wall,-Wextra &
    pids+=($!)
    for pid in "${pids[@]}"; do
        wait "$pid" || return 1
    done
}

build_all() {
    local flags="-std=c11 -O2 -D_POSIX_C_SOURCE=200809L -fno-math-errno -ffp-contract=off -I." source objects=()
    for source in kernels/base.c kernels/rope/rope.c kernels/rows/rows.c kernels/rows/rows_scalar.c kernels/isa/isa.c \
        kernels/cuda/attend_plan.c kernels/cuda/attend_levels.c tests/bench/gpu/attend_case.c; do
        compile "$build/$(basename "$source" .c).o" "$source" gcc $flags || return 1
        objects+=("$build/$(basename "$source" .c).o")
    done
    compile "$build/rows_avx512.o" kernels/rows/rows_avx512.c gcc $flags -mavx512f -mavx512bw -mavx512vl -mavx512dq \
        -mavx512vnni -mfma -mf16c || return 1
    objects+=("$build/rows_avx512.o" "$build/bench_attend.o")
    build_variant "" || return 1
    build_variant _copies -DATTEND_NO_BULK || return 1
    local name
    for name in "" _copies; do
        [ -x "$build/bench_attend$name" ] && [ "$build/bench_attend$name" -nt "$build/attend_d128$name.o" ] && continue
        nvcc -std=c++17 "${objects[@]}" "$build"/attend_{d64,d128,d256,launch}"$name.o" -o "$build/bench_attend$name" || return 1
    done
}

step() { # title, file, command...
    local title=$1 file=$2
    shift 2
    echo "==== $title ($(date +%T))"
    timeout "${LIMIT:-200}" "$@" 2>&1 | tee "$out/attend-$file.txt" | tail -"${LINES_SHOWN:-60}"
    echo "---- exit ${PIPESTATUS[0]}"
}

for name in $steps; do
    case $name in
    build)
        echo "==== build ($(date +%T))"
        build_all || exit 1
        ;;
    check)
        step "check" check "$build/bench_attend" check
        LINES_SHOWN=8 step "check of the path without bulk copies" check-copies "$build/bench_attend_copies" check
        ;;
    sanitize)
        for tool in memcheck racecheck initcheck; do
            LIMIT=40 LINES_SHOWN=6 step "$tool" "$tool" compute-sanitizer --tool "$tool" "$build/bench_attend" check "d128 hadamard"
        done
        ;;
    time)
        nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv
        step "time" time "$build/bench_attend" suite
        nvidia-smi --query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active --format=csv
        ;;
    torch)
        step "PyTorch" torch python3 tests/bench/gpu/attend_torch.py
        ;;
    profile)
        for context in 102400 1048576; do
            LIMIT=60 LINES_SHOWN=90 step "profile of $context tokens" "profile-$context" ncu --clock-control none \
                --kernel-name regex:attend_kernel --launch-count 1 --section SpeedOfLight --section WarpStateStats \
                --section SchedulerStats --section ComputeWorkloadAnalysis --section MemoryWorkloadAnalysis \
                --section LaunchStats --section Occupancy "$build/bench_attend" time "context=$context" layers=1 once=1 overlap=0
        done
        ;;
    esac
done
