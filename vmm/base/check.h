/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of conditions that only a bug of ours can break. Errors of callers and devices are
 * statuses.
 *
 * DUCTILE_CHECK chooses the level at build time: 0 off, 1 constant-time asserts, 2 also the
 * consistency of the object at hand, 3 also the whole heap after every public call.
 * Conditions are compiled at every level, so that they cannot rot.
 */
#ifndef DUCTILE_VMM_BASE_CHECK_H
#define DUCTILE_VMM_BASE_CHECK_H

#ifndef DUCTILE_CHECK
#define DUCTILE_CHECK 0
#endif

/* A failed check. `invariant` is its number in docs/dev/invariants.md, or "" for none. */
typedef struct dti_failure {
    const char *invariant;
    const char *condition;
    const char *file;
    int line;
} dti_failure;

typedef void (*dti_fail_handler)(const dti_failure *failure);

/* Replaces the handler, for tests; the default writes one line to standard error and aborts, which
 * only a build with checks can reach. */
void dti_set_fail_handler(dti_fail_handler handler);

void dti_fail(const char *invariant, const char *condition, const char *file, int line);

/* Not sizeof: clang warns of a function that is named nowhere else. */
#define DTI_UNUSED_CHECK(cond) ((void)(0 && (cond)))
#define DTI_DO_CHECK(id, cond) ((cond) ? (void)0 : dti_fail((id), #cond, __FILE__, __LINE__))

#if DUCTILE_CHECK >= 1
#define DTI_ASSERT(cond) DTI_DO_CHECK("", cond)
#else
#define DTI_ASSERT(cond) DTI_UNUSED_CHECK(cond)
#endif

#if DUCTILE_CHECK >= 2
#define DTI_CHECK(id, cond) DTI_DO_CHECK(id, cond)
#else
#define DTI_CHECK(id, cond) DTI_UNUSED_CHECK(cond)
#endif

#endif
