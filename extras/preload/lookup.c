/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ways to ask for a function at run time. Ductile's own requests get the driver's
 * functions: that is what keeps its calls out of this library.
 */
#include "next.h"
#include "real.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

/* ---- dlsym --------------------------------------------------------------------------------- */

/* Called by the instructions below alone. */
__attribute__((used)) dpre_dlsym_function dpre_choose_dlsym(void *handle, const char *symbol,
                                                            const void *caller);

static bool is_of_ductile(const void *address) {
    const char *(*version)(void) = ductile_version;
    void *function;
    Dl_info there, here;
    memcpy(&function, &version, sizeof(function));
    return dladdr(address, &there) != 0 && dladdr(function, &here) != 0 &&
           there.dli_fbase == here.dli_fbase;
}

/* Where the driver lacks what was found, the C library says so. It must see a call from here: the
 * last statement would become a jump. */
static void *find_interposed(void *handle, const char *symbol) {
    void *there = dpre_dlsym()(handle, symbol);
    void *found = dpre_replace(symbol, there);
    if (found == NULL && there != NULL) {
        found = dpre_dlsym()(RTLD_NEXT, symbol);
        __asm__ volatile("" : "+r"(found));
    }
    return found;
}

/* Which function answers a call of dlsym. RTLD_NEXT asks for what stands behind the caller:
 * another library that interposes the driver gets the function that it wants to forward to. */
dpre_dlsym_function dpre_choose_dlsym(void *handle, const char *symbol, const void *caller) {
    bool may_be = symbol != NULL && symbol[0] == 'c' && symbol[1] == 'u' && handle != RTLD_NEXT;
    if (!may_be || !dpre_is_interposed(symbol) || is_of_ductile(caller)) {
        return dpre_dlsym();
    }
    return find_interposed;
}

/* The C library takes the caller of dlsym for RTLD_NEXT and RTLD_DEFAULT from the return address.
 * So the chosen function is jumped to, with the stack as it was. */
PRELOAD_API void *dlsym(void *restrict handle, const char *restrict symbol);

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rsi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    movq 24(%rsp), %rdx\n"
        "    call dpre_choose_dlsym\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rsi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    jmp *%rax\n"
        ".cfi_endproc\n"
        ".size dlsym, .-dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "    hint #34\n" /* a landing pad of indirect calls */
        "    stp x29, x30, [sp, #-32]!\n"
        "    .cfi_def_cfa_offset 32\n"
        "    .cfi_offset 29, -32\n"
        "    .cfi_offset 30, -24\n"
        "    stp x0, x1, [sp, #16]\n"
        "    mov x2, x30\n"
        "    bl dpre_choose_dlsym\n"
        "    mov x16, x0\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #32\n"
        "    .cfi_restore 30\n"
        "    .cfi_restore 29\n"
        "    .cfi_def_cfa_offset 0\n"
        "    br x16\n"
        ".cfi_endproc\n"
        ".size dlsym, .-dlsym\n");
#else
#error "dlsym must be entered and left by a jump: write those instructions for this machine"
#endif

/* ---- The driver's own search ---------------------------------------------------------------- */

static cu_result replaced(cu_result code, const char *name, void **out) {
    if (code == CU_SUCCESS && name != NULL && out != NULL) {
        *out = dpre_replace_searched(name, *out);
    }
    return code;
}

cu_result cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
    return replaced(REAL(cuGetProcAddress, name, out, version, flags), name, out);
}

cu_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                              int *answer) {
    return replaced(REAL(cuGetProcAddress_v2, name, out, version, flags, answer), name, out);
}
