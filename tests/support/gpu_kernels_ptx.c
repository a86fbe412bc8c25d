/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels, in PTX. All parameters are 64 bits. Each kernel walks the words from its thread's
 * number on in steps of the whole grid; the shared parts are macros, in the order in which a
 * kernel has them: ENTRY, DECLARE, LOAD_*, [START], LOOP_BEGIN, body, LOOP_END.
 */
#include "tests/support/gpu_kernels.h"

#define HEAD(version, target) ".version " version "\n.target " target "\n.address_size 64\n"

#define DECLARE                                                                                    \
    "{\n"                                                                                          \
    ".reg .pred %p<4>;\n"                                                                          \
    ".reg .b32 %r<16>;\n"                                                                          \
    ".reg .b64 %rd<16>;\n"                                                                         \
    ".reg .b32 %word, %hash, %id, %bad;\n"                                                         \
    ".reg .b64 %at, %n, %i, %step, %counter, %count, %flag, %limit, %now, %begin;\n"               \
    "mov.u32 %bad, 0;\n"

#define PARAMETER(number, name) "ld.param.u64 %" name ", [p" number "];\n"

/* address, n, id */
#define LOAD_SPAN                                                                                  \
    PARAMETER("0", "at")                                                                           \
    PARAMETER("1", "n")                                                                            \
    "ld.param.u32 %id, [p2];\n"                                                                    \
    "cvta.to.global.u64 %at, %at;\n"
#define LOAD_COUNTER PARAMETER("3", "counter") "cvta.to.global.u64 %counter, %counter;\n"

/* Passes %limit nanoseconds. */
#define PASS_TIME                                                                                  \
    "mov.u64 %begin, %globaltimer;\n"                                                              \
    "WAITING:\n"                                                                                   \
    "mov.u64 %now, %globaltimer;\n"                                                                \
    "sub.u64 %now, %now, %begin;\n"                                                                \
    "setp.lt.u64 %p3, %now, %limit;\n"                                                             \
    "@%p3 bra WAITING;\n"

/* %i from this thread's number to %n, and %rd2 the address of the word. */
#define LOOP_BEGIN                                                                                 \
    "mov.u32 %r1, %ctaid.x;\n"                                                                     \
    "mov.u32 %r2, %ntid.x;\n"                                                                      \
    "mov.u32 %r3, %tid.x;\n"                                                                       \
    "mov.u32 %r4, %nctaid.x;\n"                                                                    \
    "mul.wide.u32 %i, %r1, %r2;\n"                                                                 \
    "cvt.u64.u32 %rd1, %r3;\n"                                                                     \
    "add.u64 %i, %i, %rd1;\n"                                                                      \
    "mul.wide.u32 %step, %r4, %r2;\n"                                                              \
    "NEXT:\n"                                                                                      \
    "setp.ge.u64 %p1, %i, %n;\n"                                                                   \
    "@%p1 bra DONE;\n"                                                                             \
    "shl.b64 %rd2, %i, 2;\n"                                                                       \
    "add.u64 %rd2, %rd2, %at;\n"
#define LOOP_END                                                                                   \
    "add.u64 %i, %i, %step;\n"                                                                     \
    "bra NEXT;\n"                                                                                  \
    "DONE:\n"

/* %hash = a hash of %id and %i */
#define HASH                                                                                       \
    "cvt.u32.u64 %r5, %i;\n"                                                                       \
    "mul.lo.u32 %hash, %r5, 0x9E3779B1;\n"                                                         \
    "add.u32 %hash, %hash, %id;\n"                                                                 \
    "shr.u32 %r6, %hash, 16;\n"                                                                    \
    "xor.b32 %hash, %hash, %r6;\n"                                                                 \
    "mul.lo.u32 %hash, %hash, 0x85EBCA6B;\n"                                                       \
    "shr.u32 %r6, %hash, 13;\n"                                                                    \
    "xor.b32 %hash, %hash, %r6;\n"

#define COUNT_IF_BAD(expected)                                                                     \
    "setp.ne.u32 %p2, %word, " expected ";\n"                                                      \
    "@%p2 add.u32 %bad, %bad, 1;\n"

/* One addition for each thread that saw something wrong. */
#define ADD_COUNT                                                                                  \
    "setp.eq.u32 %p2, %bad, 0;\n"                                                                  \
    "@%p2 bra QUIET;\n"                                                                            \
    "cvt.u64.u32 %count, %bad;\n"                                                                  \
    "red.global.add.u64 [%counter], %count;\n"                                                     \
    "QUIET:\n"

#define FILL_BODY LOOP_BEGIN HASH "st.global.u32 [%rd2], %hash;\n" LOOP_END
#define CHECK_BODY(load)                                                                           \
    LOOP_BEGIN HASH load " %word, [%rd2];\n" COUNT_IF_BAD("%hash") LOOP_END ADD_COUNT

#define END "ret;\n}\n"

#define ENTRY1(name) ".visible .entry " name "(.param .u64 p0)\n"
#define ENTRY3(name) ".visible .entry " name "(.param .u64 p0, .param .u64 p1, .param .u64 p2)\n"
#define ENTRY4(name)                                                                               \
    ".visible .entry " name "(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)\n"
#define ENTRY5(name)                                                                               \
    ".visible .entry " name "(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, "    \
    ".param .u64 p4)\n"
#define ENTRY6(name)                                                                               \
    ".visible .entry " name "(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, "    \
    ".param .u64 p4, .param .u64 p5)\n"

/* Each kernel is a module of its own: an ISO C string has its length limits. */
#define COMMON HEAD("7.0", "sm_75")
#define DEPENDENT HEAD("7.8", "sm_90")

/* clang-format off */
const gpu_kernel_text gpu_kernel_texts[GPU_N_KERNELS] = {
    [GPU_FILL_WORDS] = {"fill_words", COMMON
        ENTRY3("fill_words") DECLARE LOAD_SPAN FILL_BODY END},

    [GPU_CHECK_WORDS] = {"check_words", COMMON
        ENTRY4("check_words") DECLARE LOAD_SPAN LOAD_COUNTER CHECK_BODY("ld.global.u32") END},

    [GPU_CHECK_CONST] = {"check_const", COMMON
        ENTRY4("check_const") DECLARE LOAD_SPAN LOAD_COUNTER CHECK_BODY("ld.global.nc.u32") END},

    [GPU_CHECK_VALUE] = {"check_value", COMMON
        ENTRY4("check_value") DECLARE LOAD_SPAN LOAD_COUNTER LOOP_BEGIN
        "ld.global.u32 %word, [%rd2];\n" COUNT_IF_BAD("%id") LOOP_END ADD_COUNT END},

    [GPU_SPIN] = {"spin", COMMON
        ENTRY1("spin") DECLARE PARAMETER("0", "limit") PASS_TIME END},

    /* Volatile, so that every pass reads memory again; the flag is the host's. */
    [GPU_GUARD_WORDS] = {"guard_words", COMMON
        ENTRY6("guard_words") DECLARE LOAD_SPAN LOAD_COUNTER
        PARAMETER("4", "flag") PARAMETER("5", "limit")
        "cvta.to.global.u64 %flag, %flag;\n"
        "mov.u64 %begin, %globaltimer;\n"
        "AGAIN:\n"
        LOOP_BEGIN HASH "ld.volatile.global.u32 %word, [%rd2];\n" COUNT_IF_BAD("%hash") LOOP_END
        "ld.volatile.global.u64 %rd3, [%flag];\n"
        "setp.ne.u64 %p1, %rd3, 0;\n"
        "@%p1 bra LEAVE;\n"
        "mov.u64 %now, %globaltimer;\n"
        "sub.u64 %now, %now, %begin;\n"
        "setp.lt.u64 %p3, %now, %limit;\n"
        "@%p3 bra AGAIN;\n"
        "LEAVE:\n" ADD_COUNT END},

    [GPU_EARLY_FILL] = {"early_fill", DEPENDENT
        ENTRY4("early_fill") DECLARE LOAD_SPAN PARAMETER("3", "limit")
        "griddepcontrol.launch_dependents;\n" PASS_TIME FILL_BODY END},

    [GPU_EARLY_CHECK] = {"early_check", DEPENDENT
        ENTRY5("early_check") DECLARE LOAD_SPAN LOAD_COUNTER PARAMETER("4", "limit")
        "griddepcontrol.launch_dependents;\n" PASS_TIME CHECK_BODY("ld.global.u32") END},

    [GPU_WAITING_FILL] = {"waiting_fill", DEPENDENT
        ENTRY3("waiting_fill") DECLARE LOAD_SPAN "griddepcontrol.wait;\n" FILL_BODY END},

    [GPU_WAITING_CHECK] = {"waiting_check", DEPENDENT
        ENTRY4("waiting_check") DECLARE LOAD_SPAN LOAD_COUNTER
        "griddepcontrol.wait;\n" CHECK_BODY("ld.global.u32") END},
};
/* clang-format on */
