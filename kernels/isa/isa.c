/*
 * isa: which instruction set the operations use. Decided once from what processor and system offer; a test (or a
 * user who wants another machine's bits) may choose a lesser one. The choice is the only mutable state here: one
 * atomic word, written before anything is opened.
 */
#include "kernels/kernels.h"

#include <cpuid.h>
#include <stdatomic.h>

enum {
    LEAF1_ECX_FMA = 1 << 12,
    LEAF1_ECX_OSXSAVE = 1 << 27,
    LEAF1_ECX_AVX = 1 << 28,
    LEAF1_ECX_F16C = 1 << 29,
    LEAF7_EBX_AVX2 = 1 << 5,
    LEAF7_EBX_AVX512F = 1 << 16,
    LEAF7_EBX_AVX512DQ = 1 << 17,
    LEAF7_EBX_AVX512BW = 1 << 30,
    LEAF7_ECX_AVX512VNNI = 1 << 11,
    XCR0_YMM = 0x6, /* SSE and AVX state are saved by the system */
    XCR0_ZMM = 0xe6 /* and the mask registers and both halves of the 512-bit ones */
};
#define LEAF7_EBX_AVX512VL 0x80000000u

static uint32_t saved_state(void)
{
    uint32_t low;
    uint32_t high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has_all(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

krn_isa krn_isa_best(void)
{
    uint32_t eax;
    uint32_t ebx;
    uint32_t ecx;
    uint32_t edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 ||
            !has_all(ecx, LEAF1_ECX_FMA | LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX | LEAF1_ECX_F16C)) {
        return KRN_ISA_SCALAR;
    }
    uint32_t state = saved_state();
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || !has_all(state, XCR0_YMM) ||
            !has_all(ebx, LEAF7_EBX_AVX2)) {
        return KRN_ISA_SCALAR;
    }
    uint32_t wide = LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512VL;
    if (has_all(state, XCR0_ZMM) && has_all(ebx, wide) && has_all(ecx, LEAF7_ECX_AVX512VNNI)) {
        return KRN_ISA_AVX512;
    }
    return KRN_ISA_AVX2;
}

static _Atomic int chosen = -1; /* -1: not decided yet; every thread would decide the same */

krn_isa krn_isa_current(void)
{
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa < 0) {
        isa = (int)krn_isa_best();
        atomic_store_explicit(&chosen, isa, memory_order_relaxed);
    }
    return (krn_isa)isa;
}

void krn_isa_set(krn_isa isa)
{
    REQUIRE(isa <= krn_isa_best());
    atomic_store_explicit(&chosen, (int)isa, memory_order_relaxed);
}

const char *krn_isa_name(krn_isa isa)
{
    static const char *const names[KRN_ISA_COUNT] = {"scalar", "avx2", "avx512"};
    REQUIRE((unsigned)isa < KRN_ISA_COUNT);
    return names[isa];
}

/* Products, row operations and rotations give the same bits under every instruction set; the name is in it because
 * attention may not. The number counts changes of bits. */
const char *krn_numeric_abi(void)
{
    static const char *const abi[KRN_ISA_COUNT] = {"cpu-scalar-1", "cpu-avx2-2", "cpu-avx512-1"};
    return abi[krn_isa_current()];
}
