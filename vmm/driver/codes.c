/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver's codes mean: the one table from CUresult to names and statuses. */
#include "vmm/driver/driver.h"

/*
 * X(name, value, status, sticky). Sticky: cuda.h says the process must be terminated, or the
 * context is gone; no later call can succeed. INVALID_VALUE is ERR_DRIVER, not INVALID_ARGUMENT:
 * the caller's arguments were checked long before, so the driver's complaint is about ours.
 * Searched from the first row on: the answers to queries come first.
 */
#define CODE_MAP(X)                                                                                \
    X(SUCCESS, 0, OK, 0)                                                                           \
    X(ERROR_NOT_READY, 600, ERR_NOT_READY, 0)                                                      \
    X(ERROR_INVALID_VALUE, 1, ERR_DRIVER, 0)                                                       \
    X(ERROR_OUT_OF_MEMORY, 2, ERR_OUT_OF_MEMORY, 0)                                                \
    X(ERROR_NOT_INITIALIZED, 3, ERR_DRIVER, 0)                                                     \
    X(ERROR_DEINITIALIZED, 4, ERR_EXITING, 1)                                                      \
    X(ERROR_STUB_LIBRARY, 34, ERR_NO_LIBRARY, 0)                                                   \
    X(ERROR_CALL_REQUIRES_NEWER_DRIVER, 36, ERR_DRIVER_TOO_OLD, 0)                                 \
    X(ERROR_DEVICE_UNAVAILABLE, 46, ERR_NO_DEVICE, 0)                                              \
    X(ERROR_NO_DEVICE, 100, ERR_NO_DEVICE, 0)                                                      \
    X(ERROR_INVALID_DEVICE, 101, ERR_NO_DEVICE, 0)                                                 \
    X(ERROR_INVALID_CONTEXT, 201, ERR_DRIVER, 0)                                                   \
    X(ERROR_ECC_UNCORRECTABLE, 214, ERR_DEVICE_LOST, 1)                                            \
    X(ERROR_NVLINK_UNCORRECTABLE, 220, ERR_DEVICE_LOST, 1)                                         \
    X(ERROR_CONTAINED, 226, ERR_DEVICE_LOST, 1)                                                    \
    X(ERROR_OPERATING_SYSTEM, 304, ERR_DRIVER, 0)                                                  \
    X(ERROR_INVALID_HANDLE, 400, ERR_DRIVER, 0)                                                    \
    X(ERROR_ILLEGAL_STATE, 401, ERR_DRIVER, 0)                                                     \
    X(ERROR_NOT_FOUND, 500, ERR_DRIVER, 0)                                                         \
    X(ERROR_ILLEGAL_ADDRESS, 700, ERR_DEVICE_LOST, 1)                                              \
    X(ERROR_LAUNCH_OUT_OF_RESOURCES, 701, ERR_DRIVER, 0)                                           \
    X(ERROR_LAUNCH_TIMEOUT, 702, ERR_DEVICE_LOST, 1)                                               \
    X(ERROR_CONTEXT_IS_DESTROYED, 709, ERR_DEVICE_LOST, 1)                                         \
    X(ERROR_ASSERT, 710, ERR_DEVICE_LOST, 1)                                                       \
    X(ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, ERR_DRIVER, 0)                                    \
    X(ERROR_HOST_MEMORY_NOT_REGISTERED, 713, ERR_DRIVER, 0)                                        \
    X(ERROR_HARDWARE_STACK_ERROR, 714, ERR_DEVICE_LOST, 1)                                         \
    X(ERROR_ILLEGAL_INSTRUCTION, 715, ERR_DEVICE_LOST, 1)                                          \
    X(ERROR_MISALIGNED_ADDRESS, 716, ERR_DEVICE_LOST, 1)                                           \
    X(ERROR_INVALID_ADDRESS_SPACE, 717, ERR_DEVICE_LOST, 1)                                        \
    X(ERROR_INVALID_PC, 718, ERR_DEVICE_LOST, 1)                                                   \
    X(ERROR_LAUNCH_FAILED, 719, ERR_DEVICE_LOST, 1)                                                \
    X(ERROR_TENSOR_MEMORY_LEAK, 721, ERR_DEVICE_LOST, 1)                                           \
    X(ERROR_NOT_PERMITTED, 800, ERR_DRIVER, 0)                                                     \
    X(ERROR_NOT_SUPPORTED, 801, ERR_UNSUPPORTED, 0)                                                \
    X(ERROR_SYSTEM_NOT_READY, 802, ERR_NO_DEVICE, 0)                                               \
    X(ERROR_SYSTEM_DRIVER_MISMATCH, 803, ERR_NO_DEVICE, 0)                                         \
    X(ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, ERR_NO_DEVICE, 0)                                 \
    X(ERROR_MPS_CLIENT_TERMINATED, 810, ERR_DEVICE_LOST, 1)                                        \
    X(ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, ERR_CAPTURING, 0)                                     \
    X(ERROR_STREAM_CAPTURE_INVALIDATED, 901, ERR_CAPTURING, 0)                                     \
    X(ERROR_STREAM_CAPTURE_MERGE, 902, ERR_CAPTURING, 0)                                           \
    X(ERROR_STREAM_CAPTURE_UNMATCHED, 903, ERR_CAPTURING, 0)                                       \
    X(ERROR_STREAM_CAPTURE_UNJOINED, 904, ERR_CAPTURING, 0)                                        \
    X(ERROR_STREAM_CAPTURE_ISOLATION, 905, ERR_CAPTURING, 0)                                       \
    X(ERROR_STREAM_CAPTURE_IMPLICIT, 906, ERR_CAPTURING, 0)                                        \
    X(ERROR_CAPTURED_EVENT, 907, ERR_CAPTURING, 0)                                                 \
    X(ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, ERR_CAPTURING, 0)                                    \
    X(ERROR_EXTERNAL_DEVICE, 911, ERR_DEVICE_LOST, 1)                                              \
    X(ERROR_UNKNOWN, 999, ERR_DRIVER, 0)

typedef struct code_meaning {
    int code;
    ductile_status status;
    bool is_sticky;
    const char *name;
} code_meaning;

static const code_meaning meanings[] = {
#define CODE_ROW(name, value, status, sticky) {value, DUCTILE_##status, sticky, "CUDA_" #name},
    CODE_MAP(CODE_ROW)
#undef CODE_ROW
};

/* A code the table does not name is an error like any other. */
static const code_meaning unnamed = {-1, DUCTILE_ERR_DRIVER, false, "CUDA_ERROR_unnamed"};

static const code_meaning *meaning_of(int code) {
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
        if (meanings[i].code == code) {
            return &meanings[i];
        }
    }
    return &unnamed;
}

ductile_status dvmm_status_of(int code) {
    return meaning_of(code)->status;
}

const char *dvmm_code_name(int code) {
    return meaning_of(code)->name;
}

bool dvmm_code_is_sticky(int code) {
    return meaning_of(code)->is_sticky;
}

const char *dvmm_call_name(dvmm_call call) {
    static const char *const names[] = {
#define CALL_NAME(name, parameters) #name,
        DVMM_CALLS(CALL_NAME)
#undef CALL_NAME
    };
    return (unsigned)call < DVMM_N_CALLS ? names[call] : "unknown";
}
