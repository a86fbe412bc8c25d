/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares Ductile's own declarations of NVTX with NVIDIA's headers, where there are some.
 * Everything happens at compile time; a difference is an error that names its line.
 */
#include "vmm/base/same.h"
#include "vmm/nvtx/interface.h"

#ifdef __has_include
#if __has_include(<nvtx3/nvToolsExtMem.h>)
#define FOUND_NVTX_HEADERS 1
#endif
#endif

/* A file may not be empty of declarations. */
_Static_assert(sizeof(void *) == 8, "a 64-bit system is needed");

#ifdef FOUND_NVTX_HEADERS
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtMem.h>

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

SAME_SIZE(nvtx_segment, nvtxExtModuleSegment_t);
SAME_PLACE(nvtx_segment, id, nvtxExtModuleSegment_t, segmentId);
SAME_PLACE(nvtx_segment, n_slots, nvtxExtModuleSegment_t, slotCount);
SAME_PLACE(nvtx_segment, slots, nvtxExtModuleSegment_t, functionSlots);
SAME_SIZE(nvtx_module, nvtxExtModuleInfo_t);
SAME_PLACE(nvtx_module, version, nvtxExtModuleInfo_t, nvtxVer);
SAME_PLACE(nvtx_module, struct_size, nvtxExtModuleInfo_t, structSize);
SAME_PLACE(nvtx_module, id, nvtxExtModuleInfo_t, moduleId);
SAME_PLACE(nvtx_module, compat_id, nvtxExtModuleInfo_t, compatId);
SAME_PLACE(nvtx_module, n_segments, nvtxExtModuleInfo_t, segmentsCount);
SAME_PLACE(nvtx_module, segments, nvtxExtModuleInfo_t, segments);
SAME_PLACE(nvtx_module, get_function, nvtxExtModuleInfo_t, getExportFunction);
SAME_PLACE(nvtx_module, info, nvtxExtModuleInfo_t, extInfo);

SAME_SIZE(nvtx_span, nvtxMemVirtualRangeDesc_v1);
SAME_PLACE(nvtx_span, size, nvtxMemVirtualRangeDesc_v1, size);
SAME_PLACE(nvtx_span, address, nvtxMemVirtualRangeDesc_v1, ptr);
SAME_SIZE(nvtx_heap_description, nvtxMemHeapDesc_v1);
SAME_PLACE(nvtx_heap_description, compat_id, nvtxMemHeapDesc_v1, extCompatID);
SAME_PLACE(nvtx_heap_description, struct_size, nvtxMemHeapDesc_v1, structSize);
SAME_PLACE(nvtx_heap_description, usage, nvtxMemHeapDesc_v1, usage);
SAME_PLACE(nvtx_heap_description, type, nvtxMemHeapDesc_v1, type);
SAME_PLACE(nvtx_heap_description, type_size, nvtxMemHeapDesc_v1, typeSpecificDescSize);
SAME_PLACE(nvtx_heap_description, type_description, nvtxMemHeapDesc_v1, typeSpecificDesc);
SAME_PLACE(nvtx_heap_description, category, nvtxMemHeapDesc_v1, category);
SAME_PLACE(nvtx_heap_description, message_type, nvtxMemHeapDesc_v1, messageType);
SAME_PLACE(nvtx_heap_description, message, nvtxMemHeapDesc_v1, message);
SAME_SIZE(nvtx_register_batch, nvtxMemRegionsRegisterBatch_v1);
SAME_PLACE(nvtx_register_batch, type, nvtxMemRegionsRegisterBatch_v1, regionType);
SAME_PLACE(nvtx_register_batch, heap, nvtxMemRegionsRegisterBatch_v1, heap);
SAME_PLACE(nvtx_register_batch, n_regions, nvtxMemRegionsRegisterBatch_v1, regionCount);
SAME_PLACE(nvtx_register_batch, region_size, nvtxMemRegionsRegisterBatch_v1, regionDescElementSize);
SAME_PLACE(nvtx_register_batch, regions, nvtxMemRegionsRegisterBatch_v1, regionDescElements);
SAME_PLACE(nvtx_register_batch, handles_out, nvtxMemRegionsRegisterBatch_v1,
           regionHandleElementsOut);
SAME_SIZE(nvtx_unregister_batch, nvtxMemRegionsUnregisterBatch_v1);
SAME_PLACE(nvtx_unregister_batch, reference_type, nvtxMemRegionsUnregisterBatch_v1, refType);
SAME_PLACE(nvtx_unregister_batch, n_references, nvtxMemRegionsUnregisterBatch_v1, refCount);
SAME_PLACE(nvtx_unregister_batch, reference_size, nvtxMemRegionsUnregisterBatch_v1, refElementSize);
SAME_PLACE(nvtx_unregister_batch, references, nvtxMemRegionsUnregisterBatch_v1, refElements);
SAME_SIZE(nvtx_name, nvtxMemRegionNameDesc_v1);
SAME_PLACE(nvtx_name, reference_type, nvtxMemRegionNameDesc_v1, regionRefType);
SAME_PLACE(nvtx_name, name_type, nvtxMemRegionNameDesc_v1, nameType);
SAME_PLACE(nvtx_name, region, nvtxMemRegionNameDesc_v1, region);
SAME_PLACE(nvtx_name, name, nvtxMemRegionNameDesc_v1, name);
SAME_PLACE(nvtx_name, category, nvtxMemRegionNameDesc_v1, category);
SAME_SIZE(nvtx_name_batch, nvtxMemRegionsNameBatch_v1);
SAME_PLACE(nvtx_name_batch, n_names, nvtxMemRegionsNameBatch_v1, regionCount);
SAME_PLACE(nvtx_name_batch, name_size, nvtxMemRegionsNameBatch_v1, regionElementSize);
SAME_PLACE(nvtx_name_batch, names, nvtxMemRegionsNameBatch_v1, regionElements);

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
SAME_VALUE(NVTX_MEMORY_MODULE, NVTX_EXT_MODULEID_MEM);
NO_LATER(NVTX_MEMORY_COMPAT, NVTX_EXT_COMPATID_MEM);
SAME_VALUE(NVTX_SLOT_HEAP_REGISTER, NVTX3EXT_CBID_nvtxMemHeapRegister);
SAME_VALUE(NVTX_SLOT_HEAP_UNREGISTER, NVTX3EXT_CBID_nvtxMemHeapUnregister);
SAME_VALUE(NVTX_SLOT_REGIONS_REGISTER, NVTX3EXT_CBID_nvtxMemRegionsRegister);
SAME_VALUE(NVTX_SLOT_REGIONS_UNREGISTER, NVTX3EXT_CBID_nvtxMemRegionsUnregister);
SAME_VALUE(NVTX_SLOT_REGIONS_NAME, NVTX3EXT_CBID_nvtxMemRegionsName);
SAME_VALUE(NVTX_HEAP_SUB_ALLOCATOR, NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR);
SAME_VALUE(NVTX_MEMORY_VIRTUAL_ADDRESS, NVTX_MEM_TYPE_VIRTUAL_ADDRESS);
SAME_VALUE(NVTX_REFERENCE_POINTER, NVTX_MEM_REGION_REF_TYPE_POINTER);

/* ---- Functions ------------------------------------------------------------------------------- */

/* As many arguments, of the same sizes, by NVIDIA's names. */
#define SAME_FUNCTION(ours, theirs)                                                                \
    _Static_assert(_Generic(&(theirs), ours##_as_theirs : 1, default : 0), #ours)

typedef nvtxDomainHandle_t (*nvtx_domain_create_as_theirs)(const char *);
typedef int (*nvtx_push_as_theirs)(nvtxDomainHandle_t, const nvtxEventAttributes_t *);
typedef int (*nvtx_pop_as_theirs)(nvtxDomainHandle_t);
typedef nvtxMemHeapHandle_t (*nvtx_heap_register_as_theirs)(nvtxDomainHandle_t,
                                                            const nvtxMemHeapDesc_t *);
typedef void (*nvtx_heap_unregister_as_theirs)(nvtxDomainHandle_t, nvtxMemHeapHandle_t);
typedef void (*nvtx_regions_register_as_theirs)(nvtxDomainHandle_t,
                                                const nvtxMemRegionsRegisterBatch_t *);
typedef void (*nvtx_regions_unregister_as_theirs)(nvtxDomainHandle_t,
                                                  const nvtxMemRegionsUnregisterBatch_t *);
typedef void (*nvtx_regions_name_as_theirs)(nvtxDomainHandle_t, const nvtxMemRegionsNameBatch_t *);

SAME_FUNCTION(nvtx_domain_create, nvtxDomainCreateA);
SAME_FUNCTION(nvtx_push, nvtxDomainRangePushEx);
SAME_FUNCTION(nvtx_pop, nvtxDomainRangePop);
SAME_FUNCTION(nvtx_heap_register, nvtxMemHeapRegister);
SAME_FUNCTION(nvtx_heap_unregister, nvtxMemHeapUnregister);
SAME_FUNCTION(nvtx_regions_register, nvtxMemRegionsRegister);
SAME_FUNCTION(nvtx_regions_unregister, nvtxMemRegionsUnregister);
SAME_FUNCTION(nvtx_regions_name, nvtxMemRegionsName);

#endif
