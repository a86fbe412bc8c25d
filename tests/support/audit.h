/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything the public interface shows of an allocator, recounted and compared: its own check,
 * the identities of its statistics, the tiling of its ranges, the device's counts, and the live
 * blocks of a model. Only for moments when no other call is running, but for the last.
 */
#ifndef TESTS_SUPPORT_AUDIT_H
#define TESTS_SUPPORT_AUDIT_H

#include "tests/support/fixture_virtual.h"
#include "tests/support/model.h"

/* ductile_check; statistics; a walk, in which blocks tile each range and free neighbours are
 * merged; and the model, which may be NULL. */
const char *audit_allocator(ductile_allocator *allocator, const model *m);

/* The same, and that the device agrees. Only when this allocator is alone on it. */
const char *audit_fixture(const fixture *f, const model *m);

/* What holds at any time, also while other threads allocate: ductile_check, blocks that tile each
 * range, and those identities of the statistics that each call keeps. */
const char *audit_at_any_time(ductile_allocator *allocator);

/* No call has left this thread in the relaxed capture mode. Not where a call that restores the mode
 * was made to fail. */
const char *audit_capture_mode(const fixture *f);

/* Before a run: one before it in the process may have lost its device, and then no call restored
 * the thread's mode. */
const char *audit_reset_capture_mode(const fixture *f);

#endif
