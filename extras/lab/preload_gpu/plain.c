/* SPDX-License-Identifier: Apache-2.0 */
/* A program of the driver's interface: memory of both kinds is written on the GPU, read back, and
 * freed, 200 times. Exit status: 0 when every value was right. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long device_addr;
typedef struct CUstream_st *stream;
typedef struct CUctx_st *context;

extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(context *, int), cuCtxSetCurrent(context);
extern int cuMemAlloc_v2(device_addr *, size_t), cuMemFree_v2(device_addr);
extern int cuMemAllocAsync(device_addr *, size_t, stream), cuMemFreeAsync(device_addr, stream);
extern int cuMemsetD32Async(device_addr, unsigned, size_t, stream);
extern int cuMemcpyDtoHAsync_v2(void *, device_addr, size_t, stream);
extern int cuStreamCreate(stream *, unsigned), cuStreamSynchronize(stream);

static void check(int code, const char *call) {
    if (code != 0) {
        fprintf(stderr, "%s: %d\n", call, code);
        exit(1);
    }
}

#define CHECK(call) check(call, #call)

/* Another stream than the one that a block was made on uses it at once, where no order is promised
 * but that of cuMemAlloc. */
static void use(device_addr at, size_t words, unsigned value, stream s) {
    unsigned first = 0, last = 0;
    CHECK(cuMemsetD32Async(at, value, words, s));
    CHECK(cuMemcpyDtoHAsync_v2(&first, at, sizeof(first), s));
    CHECK(cuMemcpyDtoHAsync_v2(&last, at + (words - 1) * 4, sizeof(last), s));
    CHECK(cuStreamSynchronize(s));
    check(first != value || last != value, "the memory holds another value");
}

int main(void) {
    context primary;
    stream streams[3];
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
    CHECK(cuCtxSetCurrent(primary));
    for (int i = 0; i < 3; i++) {
        CHECK(cuStreamCreate(&streams[i], 1));
    }
    for (unsigned i = 0; i < 200; i++) {
        size_t words = (size_t)(1 + i * 7919 % 64) << 18;
        stream own = streams[i % 3], other = streams[(i + 1) % 3];
        device_addr a, b;
        CHECK(cuMemAlloc_v2(&a, words * 4));
        CHECK(cuMemAllocAsync(&b, words * 4, own));
        use(a, words, i, other);
        use(b, words, ~i, own);
        CHECK(cuMemFreeAsync(b, own));
        CHECK(i % 2 == 0 ? cuMemFree_v2(a) : cuMemFreeAsync(a, other));
    }
    puts("plain: every value was right");
    return 0;
}
