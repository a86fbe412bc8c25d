/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hand over: all memory of a tag passed to another process on the same GPU as one message. The
 * memory stays where it is. A trainer updates weights in place, and a generator reads them, through
 * mappings of their own.
 *
 *     trainer: (void)ductile_export_tag(a, "weights", names, n, socket, &id, &layout);
 *     generator: (void)ductile_import_tag(a, socket, stream, DUCTILE_IMPORT_READ, 0, &weights);
 *                ... weights->address + weights->names[i].offset ...
 *                (void)ductile_import_release(a, weights);
 *
 * Order is the program's: Ductile orders no work between processes. A reader that reads while the
 * writer writes sees torn contents. Use interprocess events, or let the writer wait for its streams
 * and publish a number that the reader waits for (in Python: ductile_gpu.Epoch).
 *
 * Read only is a property of the importer's mapping, and the device enforces it there: a copy or a
 * fill into it is refused by the driver (CUDA_ERROR_INVALID_VALUE) and nothing else happens. A
 * store of a kernel ends the reader's own CUDA context with an illegal address; the writer and
 * other readers go on. It guards against mistakes, not against a hostile importer, which could map
 * the same handles writable.
 *
 * A descriptor keeps memory alive without a CUDA context. An owner process holds a tag so, with
 * ductile_hold_tag, while trainers and generators come and go.
 *
 * Memory that is exported stays mapped in the exporter while its pool sleeps (ductile_sleep.h): a
 * sleep of an exported tag gives back nothing but its free memory, and counts the rest in
 * stayed_bytes. Importers keep the memory for as long as they map it, whatever the exporter does.
 *
 * Included by ductile.h; compiles alone.
 */
#ifndef DUCTILE_HANDOVER_H
#define DUCTILE_HANDOVER_H

#include "ductile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- To other processes -------------------------------------------------------------------- */

/** A name for some of the memory of a tag, such as that of a tensor. */
typedef struct ductile_tag_name {
    ductile_addr address; /* in a live block of the tag, its start or inside       */
    uint64_t size;        /* bytes, within the block; not 0                        */
    const char *name;     /* any text: what the importer has to know; not NULL     */
} ductile_tag_name;

/**
 * Passes all live blocks of the pools with a tag to the process at the other end of a UNIX-domain
 * socket, which calls ductile_import_tag or ductile_hold_tag. Memory that several blocks lie in is
 * passed once. The two calls exchange messages; both return when all of it is mapped there, or when
 * one of them gives up.
 *
 * The layout is a hash of where each block and each name lies in what is passed, of their sizes and
 * of the names. It is equal for equal layouts; contents are not part of it.
 *
 * The memory is pinned until ductile_unexport_tag, whatever the importer does. Keep the blocks live
 * while an importer uses them. Blocks allocated later are not part of the export: export again.
 *
 * Arguments: tag: of at least one pool, not "". names: NULL if n_names is 0. socket: as for
 *            ductile_export. id: receives the number of the export; not NULL. layout: receives the
 *            hash, never 0, also when the importer refused it; NULL to ignore.
 * Returns:   DUCTILE_OK; ERR_LAYOUT (the importer expects another layout); ERR_UNSUPPORTED (the
 *            option `shareable` is none, or a block is spilled); ERR_NOT_LIVE (the pools have no
 *            live block);
 *            ERR_INVALID_ARGUMENT (no pool has the tag, a name is not in one of its blocks);
 *            ERR_ASLEEP (a pool sleeps); ERR_BUSY (a block was freed meanwhile, or a pool is being
 *            put to sleep or woken); ERR_BAD_MESSAGE (as ductile_export), ERR_NO_DESCRIPTORS,
 *            ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  this call has exported nothing and left no descriptor open; *id is 0. The socket may
 *            hold part of a message: close it.
 * Ownership: end the export with ductile_unexport_tag.
 * Threads:   safe; no lock is held while the socket is used.
 * Streams:   none is passed to the driver: wait for the work that writes the memory.
 * Cost:      one driver call for each handle; linear in the live blocks of the allocator.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_export_tag(ductile_allocator *allocator,
                                                              const char *tag,
                                                              const ductile_tag_name *names,
                                                              size_t n_names, int socket,
                                                              uint64_t *id, uint64_t *layout);

/**
 * Takes one export of a tag back: with the last one its memory is no longer pinned by them. What
 * importers have mapped stays mapped there.
 *
 * Arguments: id: from ductile_export_tag.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no such export), ERR_EXITING, ERR_FORKED.
 * Threads:   safe; waits while another thread maps memory.
 * Cost:      linear in the granules of the export.
 */
DUCTILE_API ductile_status ductile_unexport_tag(ductile_allocator *allocator, uint64_t id);

/* ---- From other processes ------------------------------------------------------------------ */

/** What the importer's mapping allows; the driver's values. */
typedef enum ductile_import_access {
    DUCTILE_IMPORT_READ = 1,
    DUCTILE_IMPORT_READ_WRITE = 3
} ductile_import_access;

/** A block of an imported tag, or a name in one. */
typedef struct ductile_tag_part {
    uint64_t offset;  /* from the address of the import */
    uint64_t size;    /* bytes                          */
    const char *name; /* "" for a block                 */
} ductile_tag_part;

/** An imported tag. All of it is constant until ductile_import_release. */
typedef struct ductile_imported_tag {
    size_t struct_size;
    ductile_addr address; /* the start of its range, a multiple of the granule */
    uint64_t size;        /* bytes of the range                                */
    uint64_t layout;      /* see ductile_export_tag                            */
    char tag[DUCTILE_TAG_BYTES];
    ductile_import_access access;
    size_t n_blocks;
    const ductile_tag_part *blocks; /* ascending, without overlap */
    size_t n_names;
    const ductile_tag_part *names; /* in the order of the exporter */
} ductile_imported_tag;

/**
 * Maps a tag that another process passes, in a range exactly as large as needed.
 *
 * Arguments: socket: connected and blocking, as for ductile_export. stream: as for ductile_import.
 *            layout: the only layout that is accepted; 0: any. out: receives the import; not NULL.
 * Returns:   DUCTILE_OK; ERR_LAYOUT (the tag has another layout: nothing was mapped); otherwise as
 *            ductile_import.
 * On error:  *out is NULL; otherwise as ductile_import.
 * Ownership: release with ductile_import_release alone. The memory is the exporter's: it counts
 *            only in `imported_bytes`, and not against the limit.
 * Threads:   safe; no lock is held while the socket is used.
 * Streams:   Ductile orders nothing between the processes.
 * Cost:      one reservation; an import, a map and a release for each handle; one access call.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_import_tag(ductile_allocator *allocator,
                                                              int socket, ductile_stream stream,
                                                              ductile_import_access access,
                                                              uint64_t layout,
                                                              ductile_imported_tag **out);

/**
 * Releases an imported tag as ductile_import_close does, and frees the struct.
 *
 * Arguments: imported: from ductile_import_tag with this allocator; NULL does nothing.
 * Returns:   as ductile_import_close.
 * On error:  as ductile_import_close, and the struct stays: call again. Once the import has gone,
 *            though unmapping it failed, its address is 0, and the next call frees the struct.
 *            After ERR_DEVICE_LOST it is freed.
 * Cost:      as ductile_import_close.
 */
DUCTILE_API ductile_status ductile_import_release(ductile_allocator *allocator,
                                                  ductile_imported_tag *imported);

/* ---- An owner without a device ------------------------------------------------------------- */

/** The descriptors of a tag, and its layout. They keep the memory alive. */
typedef struct ductile_held_tag ductile_held_tag;

/**
 * Receives a tag as ductile_import_tag does, but maps nothing: it keeps the descriptors. Needs no
 * allocator, no device and no CUDA context, so a process that only holds tags takes no memory on
 * the GPU and outlives errors there.
 *
 * Arguments: socket: as for ductile_import. layout: as for ductile_import_tag. out: receives the
 *            tag; not NULL.
 * Returns:   DUCTILE_OK; ERR_LAYOUT; ERR_NO_DESCRIPTORS (it needs one for each handle: raise
 *            ulimit -n, or let the exporter use larger handles); ERR_BAD_MESSAGE,
 *            ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY.
 * On error:  *out is NULL, and no descriptor that was received stays open.
 * Ownership: drop it with ductile_drop_held_tag.
 * Cost:      a descriptor for each handle (with `shareable:fabric` none).
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_hold_tag(int socket, uint64_t layout,
                                                            ductile_held_tag **out);

/**
 * Passes a held tag to a process that calls ductile_import_tag or ductile_hold_tag, as often as
 * wished.
 *
 * Arguments: held: not NULL. socket: as for ductile_export.
 * Returns:   DUCTILE_OK; ERR_LAYOUT (the importer expects another); ERR_BAD_MESSAGE,
 *            ERR_NO_DESCRIPTORS, ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY.
 * On error:  the tag is held as before. Close the socket.
 * Threads:   safe; several threads may pass one tag at the same time.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pass_held_tag(const ductile_held_tag *held,
                                                                 int socket);

/** What is held. */
typedef struct ductile_held_info {
    size_t struct_size; /* set by the caller */
    uint64_t size;      /* bytes of memory that the descriptors keep alive */
    uint64_t layout;
    uint64_t n_handles;
    uint64_t n_blocks;
    uint64_t n_names;
    char tag[DUCTILE_TAG_BYTES];
} ductile_held_info;

/**
 * Tells what is held.
 *
 * Arguments: held, out: not NULL.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_held_describe(const ductile_held_tag *held,
                                                                 ductile_held_info *out);

/**
 * Closes the descriptors. The driver frees the memory when no process maps it any more.
 *
 * Arguments: held: NULL does nothing. No other call may be using it.
 */
DUCTILE_API void ductile_drop_held_tag(ductile_held_tag *held);

#ifdef __cplusplus
}
#endif
#endif
