#!/bin/bash
# Builds, checks and times the CUDA attention on the card of this machine, in a few minutes. From the repository root:
#   tests/bench/gpu/run.sh [build] [check] [profile] [sanitize] [torch] [time]      default: all, in that order
# Output goes to ${OUT:-build-gpu}/attend-*.txt as well. ARCH=90 by default; BUILD is the folder for binaries.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
build=${BUILD:-build-gpu} out=${OUT:-build-gpu} arch=${ARCH:-90}
mkdir -p "$build" "$out"
steps=${*:-build check profile sanitize torch time}

# Two programs: the attention with bulk copies, and with the copies of other architectures.
variant_objects() { # name, nvcc flags
    local name=$1 unit
    shift
    for unit in d64 d128 d256 launch; do
        nvcc -std=c++17 -O3 -lineinfo -I. -gencode="arch=compute_$arch,code=sm_$arch" -Xcompiler -Wall,-Wextra "$@" \
            -c "kernels/cuda/attend_$unit.cu" -o "$build/attend_$unit$name.o" || touch "$build/failed" &
    done
}

build_all() {
    local flags="-std=c11 -O2 -D_POSIX_C_SOURCE=200809L -fno-math-errno -ffp-contract=off -I." source extra objects=() name
    rm -f "$build/failed"
    nvcc -std=c++17 -O3 -I. -gencode="arch=compute_$arch,code=sm_$arch" -Xcompiler -Wall,-Wextra \
        -c tests/bench/gpu/bench_attend.cu -o "$build/bench_attend.o" || touch "$build/failed" &
    variant_objects ""
    [ -n "${SERIAL:-}" ] && wait
    variant_objects _copies -DATTEND_NO_BULK
    for source in kernels/base.c kernels/rope/rope.c kernels/rows/rows*.c kernels/isa/isa.c kernels/cuda/attend_plan.c \
        kernels/cuda/attend_levels.c tests/bench/gpu/attend_case.c; do
        extra=""
        case $source in
        *_avx2.c) extra="-mavx2 -mfma -mf16c" ;;
        *_avx512.c) extra="-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c" ;;
        esac
        objects+=("$build/$(basename "$source" .c).o")
        gcc $flags $extra -c "$source" -o "${objects[-1]}" || return 1
    done
    wait
    [ ! -f "$build/failed" ] || return 1
    for name in "" _copies; do
        nvcc -std=c++17 "${objects[@]}" "$build/bench_attend.o" "$build"/attend_{d64,d128,d256,launch}"$name.o" \
            -o "$build/bench_attend$name" || return 1
    done
}

# Binaries brought along are used when they were made from these very sources and run here.
build_if_needed() {
    local sources
    sources=$(cat kernels/*.h kernels/base.c kernels/{rope,rows,isa,cuda}/*.[ch]* kvq/page.h tests/bench/gpu/*.[ch]* | sha256sum)-$arch
    if [[ $(cat "$build/sources" 2>/dev/null) == "$sources" && $("$build/bench_attend" help 2>&1) == *usage* ]]; then
        echo "up to date"
        return 0
    fi
    build_all || return 1
    echo "$sources" >"$build/sources"
}

sanitize() {
    local tool
    for tool in memcheck racecheck initcheck; do
        echo "$tool"
        timeout 40 compute-sanitizer --tool "$tool" "$build/bench_attend" check "d128 hadamard" || echo "$tool failed"
    done
}

step() { # title, file, command...
    local title=$1 file=$2
    shift 2
    echo "==== $title ($(date +%T))"
    "$@" 2>&1 | tee "$out/attend-$file.txt" | tail -"${LINES_SHOWN:-60}"
    echo "---- exit ${PIPESTATUS[0]}"
}

for name in $steps; do
    case $name in
    build)
        echo "==== build ($(date +%T))"
        build_if_needed || exit 1
        ;;
    check)
        step "check" check timeout 100 "$build/bench_attend" check
        LINES_SHOWN=8 step "check of the path without bulk copies" check-copies timeout 100 "$build/bench_attend_copies" check
        ;;
    sanitize)
        LINES_SHOWN=12 step "compute-sanitizer" sanitize sanitize
        ;;
    time)
        nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv
        LINES_SHOWN=90 step "time" time timeout 200 "$build/bench_attend" suite
        nvidia-smi --query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active --format=csv
        ;;
    torch)
        step "PyTorch" torch timeout 150 python3 tests/bench/gpu/attend_torch.py
        ;;
    profile)
        for context in 102400 1048576; do
            LINES_SHOWN=12 step "profile of $context tokens" "profile-$context" timeout 60 ncu --clock-control none \
                --kernel-name regex:attend_kernel --launch-count 1 --section SpeedOfLight --section WarpStateStats \
                --section SchedulerStats --section ComputeWorkloadAnalysis --section MemoryWorkloadAnalysis \
                --section LaunchStats --section Occupancy "$build/bench_attend" time "context=$context" layers=1 once=1 overlap=0
        done
        ;;
    esac
done
