/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the virtual GPU comes in. It is a library of its own (vmm/virtual/README.md), which this one
 * neither carries nor needs: a program brings it, or it is opened once a device of it is asked for.
 */
#ifndef DUCTILE_VMM_DRIVER_OPEN_VIRTUAL_H
#define DUCTILE_VMM_DRIVER_OPEN_VIRTUAL_H

#include "vmm/driver/bench_calls.h"

#include <sys/types.h>

#define DVMM_QUOTED(word) #word
#define DVMM_NUMBER(word) DVMM_QUOTED(word)
#define DVMM_SERIES DVMM_NUMBER(DUCTILE_VERSION_MAJOR) "." DVMM_NUMBER(DUCTILE_VERSION_MINOR)
#define DVMM_VERSION DVMM_SERIES "." DVMM_NUMBER(DUCTILE_VERSION_PATCH)

/* A device that was opened. The owner calls ops->close(ctx). */
typedef struct dvmm_opened {
    const dvmm_driver_ops *ops;
    void *ctx;
    dvmm_caps caps;
} dvmm_opened;

/* Tells apart what was compiled from different headers of one version. */
#define DVMM_SHAPE (sizeof(dvmm_driver_ops) << 16 | sizeof(dvmm_opened))

/* The virtual GPU's side of the seam. `version` stands first in every version of this struct: only
 * it says what the rest means. */
typedef struct dvmm_backend {
    const char *version;                                                /* DVMM_VERSION */
    size_t shape;                                                       /* DVMM_SHAPE */
    ductile_status (*open)(ductile_virtual_gpu *gpu, dvmm_opened *out); /* NULL: a private one */
    const dvmm_bench_ops *bench;                                        /* gets the same ctx */
} dvmm_backend;

/* With this begins each virtual GPU, so that it is opened by the library that made it. */
typedef struct dvmm_virtual_head {
    const dvmm_backend *backend;
} dvmm_virtual_head;

/* The virtual GPU's library defines and exports it. */
DUCTILE_API const dvmm_backend *ductile_virtual_backend(void);

/* Opens a virtual GPU; NULL makes a private one with defaults that close destroys. Returns
 * DUCTILE_OK, ERR_NO_LIBRARY (the library is missing, or of another version), or
 * ERR_OUT_OF_HOST_MEMORY. With ERR_NO_LIBRARY `reason` (if not NULL) receives one sentence. */
ductile_status dvmm_open_virtual(ductile_virtual_gpu *gpu, dvmm_driver **out, char *reason,
                                 size_t reason_size);

/* May code be loaded from a file that was found, rather than named by the program: could every user
 * who may put the file there, or exchange it, do that with the running code, too? True when the
 * file, its folder and, for a link, the folder of what it leads to belong to this user, to root, or
 * to `owner`, who owns the file that holds the running code, and not everyone may write to them. A
 * group may: where it writes to the folder, it could exchange that file, too. */
bool dvmm_is_trusted_file(const char *path, uid_t owner);

#endif
