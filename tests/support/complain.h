/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How test helpers report: they return NULL when all is well and one sentence otherwise. They do
 * not know the test framework, so that threads and plain programs can use them too.
 */
#ifndef TESTS_SUPPORT_COMPLAIN_H
#define TESTS_SUPPORT_COMPLAIN_H

/* Formats a sentence into a buffer of this thread; valid until the thread's next but three. */
__attribute__((format(printf, 1, 2))) const char *complain(const char *format, ...);

/* Returns from the calling helper with the complaint of `call`, if there is one. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        const char *try_why = (call);                                                              \
        if (try_why != NULL) {                                                                     \
            return try_why;                                                                        \
        }                                                                                          \
    } while (0)

/* Returns from the calling helper with a formatted complaint when `cond` does not hold. */
#define NEED(cond, ...)                                                                            \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            return complain(__VA_ARGS__);                                                          \
        }                                                                                          \
    } while (0)

/* The same for a call that has to return DUCTILE_OK. */
#define NEED_OK(call)                                                                              \
    do {                                                                                           \
        ductile_status need_status = (call);                                                       \
        NEED(need_status == DUCTILE_OK, "%s returned %s", #call,                                   \
             ductile_status_name(need_status));                                                    \
    } while (0)

#endif
