/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that are no more: a program that still makes one does not compile, and is told what to say
 * instead. The library exports none of them. Included by ductile.h; compiles alone.
 */
#ifndef DUCTILE_REMOVED_H
#define DUCTILE_REMOVED_H

/* X(name, what is said instead). */
#define DUCTILE_REMOVED_MAP(X)                                                                     \
    X(ductile_empty_cache, "ductile_trim(allocator, NULL, 0, NULL)")                               \
    X(ductile_free_on, "ductile_free_ex(allocator, address, &stream, 1, NULL)")                    \
    X(ductile_free_reporting, "ductile_free_ex(allocator, address, NULL, 0, &is_pending)")         \
    X(ductile_pool_get_stats, "ductile_get_stats(allocator, &id, out)")                            \
    X(ductile_pool_query, "ductile_list_pools(allocator, &id, out, 1, NULL)")                      \
    X(ductile_pool_walk, "ductile_walk(allocator, &id, visit, user)")                              \
    X(ductile_pool_trim, "ductile_trim(allocator, &id, 0, released)")                              \
    X(ductile_oom_report_text,                                                                     \
      "ductile_oom_report_format(report, DUCTILE_REPORT_TEXT, buffer, size)")                      \
    X(ductile_oom_report_json,                                                                     \
      "ductile_oom_report_format(report, DUCTILE_REPORT_JSON, buffer, size)")                      \
    X(ductile_set_limit, "ductile_set_limits")                                                     \
    X(ductile_set_soft_limit, "ductile_set_limits")                                                \
    X(ductile_set_memory_fraction, "ductile_set_limits, with DUCTILE_SHARE(fraction)")             \
    X(ductile_alloc_one_handle, "ductile_alloc_dedicated")                                         \
    X(ductile_stream_never_wait, "nothing: what it spoke of is off by default")                    \
    X(ductile_export_bytes, "ductile_export, over a socket")                                       \
    X(ductile_import_bytes, "ductile_import, over a socket")

/* A use is an error where the compiler knows one of these attributes, otherwise the linker's. */
#if defined(__has_attribute)
#if __has_attribute(unavailable)
#define DUCTILE_REMOVED(instead) __attribute__((unavailable("say " instead)))
#elif __has_attribute(error)
#define DUCTILE_REMOVED(instead) __attribute__((error("say " instead)))
#endif
#endif
#if !defined(DUCTILE_REMOVED)
#define DUCTILE_REMOVED(instead)
#endif

/* Whatever the arguments are. */
#ifdef __cplusplus
#define DUCTILE_ANY_ARGUMENTS ...
extern "C" {
#else
#define DUCTILE_ANY_ARGUMENTS
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#endif
#endif

#define DUCTILE_DECLARE_REMOVED(name, instead)                                                     \
    int name(DUCTILE_ANY_ARGUMENTS) DUCTILE_REMOVED(instead);
DUCTILE_REMOVED_MAP(DUCTILE_DECLARE_REMOVED)
#undef DUCTILE_DECLARE_REMOVED

#ifdef __cplusplus
}
#elif defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif
