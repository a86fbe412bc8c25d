/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares Ductile's own declarations of NVTX with NVIDIA's headers, where there are some.
 * Everything happens at compile time; a difference is an error that names its line.
 */
#include "pool/services/profiling/interface.h"

#include "vmm/base/same.h"

#ifdef __has_include
#if __has_include(<nvtx3/nvToolsExt.h>)
#define FOUND_NVTX_HEADERS 1
#endif
#endif

/* A file may not be empty of declarations. */
_Static_assert(sizeof(void *) == 8, "a 64-bit system is needed");

#ifdef FOUND_NVTX_HEADERS
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

/* ---- Structs --------------------------------------------------------------------------------- */

SAME_SIZE(nvtx_export_callbacks, NvtxExportTableCallbacks);
SAME_PLACE(nvtx_export_callbacks, get_table, NvtxExportTableCallbacks, GetModuleFunctionTable);
SAME_SIZE(nvtx_export_version, NvtxExportTableVersionInfo);
SAME_PLACE(nvtx_export_version, version, NvtxExportTableVersionInfo, version);
SAME_PLACE(nvtx_export_version, set_tool_version, NvtxExportTableVersionInfo,
           SetInjectionNvtxVersion);

SAME_SIZE(nvtx_event, nvtxEventAttributes_v2);
SAME_PLACE(nvtx_event, version, nvtxEventAttributes_v2, version);
SAME_PLACE(nvtx_event, size, nvtxEventAttributes_v2, size);
SAME_PLACE(nvtx_event, category, nvtxEventAttributes_v2, category);
SAME_PLACE(nvtx_event, color_type, nvtxEventAttributes_v2, colorType);
SAME_PLACE(nvtx_event, color, nvtxEventAttributes_v2, color);
SAME_PLACE(nvtx_event, payload_type, nvtxEventAttributes_v2, payloadType);
SAME_PLACE(nvtx_event, payload, nvtxEventAttributes_v2, payload);
SAME_PLACE(nvtx_event, message_type, nvtxEventAttributes_v2, messageType);
SAME_PLACE(nvtx_event, message, nvtxEventAttributes_v2, message);

/* ---- Constants ------------------------------------------------------------------------------- */

/* Later headers may know more; tools take what is older. */
#define NO_LATER(ours, theirs) _Static_assert((int)(ours) <= (int)(theirs), #ours)

NO_LATER(NVTX_INTERFACE_VERSION, NVTX_VERSION);
SAME_VALUE(NVTX_TABLE_CORE, NVTX_CB_MODULE_CORE);
SAME_VALUE(NVTX_TABLE_CUDA, NVTX_CB_MODULE_CUDA);
SAME_VALUE(NVTX_TABLE_OPENCL, NVTX_CB_MODULE_OPENCL);
SAME_VALUE(NVTX_TABLE_CUDART, NVTX_CB_MODULE_CUDART);
SAME_VALUE(NVTX_TABLE_CORE2, NVTX_CB_MODULE_CORE2);
SAME_VALUE(NVTX_TABLE_SYNC, NVTX_CB_MODULE_SYNC);
NO_LATER(NVTX_CORE_SLOTS, NVTX_CBID_CORE_SIZE);
NO_LATER(NVTX_CUDA_SLOTS, NVTX_CBID_CUDA_SIZE);
NO_LATER(NVTX_OPENCL_SLOTS, NVTX_CBID_OPENCL_SIZE);
NO_LATER(NVTX_CUDART_SLOTS, NVTX_CBID_CUDART_SIZE);
NO_LATER(NVTX_CORE2_SLOTS, NVTX_CBID_CORE2_SIZE);
NO_LATER(NVTX_SYNC_SLOTS, NVTX_CBID_SYNC_SIZE);
SAME_VALUE(NVTX_SLOT_PUSH, NVTX_CBID_CORE2_DomainRangePushEx);
SAME_VALUE(NVTX_SLOT_POP, NVTX_CBID_CORE2_DomainRangePop);
SAME_VALUE(NVTX_SLOT_DOMAIN_CREATE, NVTX_CBID_CORE2_DomainCreateA);
SAME_VALUE(NVTX_EXPORT_CALLBACKS, NVTX_ETID_CALLBACKS);
SAME_VALUE(NVTX_EXPORT_VERSION, NVTX_ETID_VERSIONINFO);
SAME_VALUE(NVTX_MESSAGE_ASCII, NVTX_MESSAGE_TYPE_ASCII);
SAME_VALUE(NVTX_PAYLOAD_UINT64, NVTX_PAYLOAD_TYPE_UNSIGNED_INT64);

/* ---- Functions ------------------------------------------------------------------------------- */

/* As many arguments, of the same sizes, by NVIDIA's names. */
#define SAME_FUNCTION(ours, theirs)                                                                \
    _Static_assert(_Generic(&(theirs), ours##_as_theirs : 1, default : 0), #ours)

typedef nvtxDomainHandle_t (*nvtx_domain_create_as_theirs)(const char *);
typedef int (*nvtx_push_as_theirs)(nvtxDomainHandle_t, const nvtxEventAttributes_t *);
typedef int (*nvtx_pop_as_theirs)(nvtxDomainHandle_t);

SAME_FUNCTION(nvtx_domain_create, nvtxDomainCreateA);
SAME_FUNCTION(nvtx_push, nvtxDomainRangePushEx);
SAME_FUNCTION(nvtx_pop, nvtxDomainRangePop);

#endif
