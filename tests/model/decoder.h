/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From bytes to operations on the whole public interface, held against an independent model. The
 * first DECODER_HEAD_BYTES choose the device and the options, each further DECODER_RECORD_BYTES are
 * one operation. Every sequence of bytes is a program that keeps the contract.
 */
#ifndef TESTS_MODEL_DECODER_H
#define TESTS_MODEL_DECODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DECODER_HEAD_BYTES = 32, DECODER_RECORD_BYTES = 8 };

/* Gives the next n bytes; false: there are no more. */
typedef bool (*decoder_source)(void *user, uint8_t *out, size_t n);

/*
 * Runs the program that the source gives. trace: every operation is printed. n_operations (may be
 * NULL) grows by those that were made. NULL, or what is wrong; then devices and allocators are left
 * as they are, and the process had better end.
 */
const char *decoder_run(decoder_source next, void *user, bool trace, uint64_t *n_operations);

const char *decoder_run_bytes(const uint8_t *bytes, size_t size, bool trace,
                              uint64_t *n_operations);

#endif
