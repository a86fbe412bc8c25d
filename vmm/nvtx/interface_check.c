/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares Ductile's own declarations of NVTX with NVIDIA's headers, where there are some.
 * Everything happens at compile time; a difference is an error that names its line.
 */
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

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours)
#define SAME_PLACE(ours, our_field, theirs, their_field)                                           \
    _Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) &&                   \
                       sizeof(((ours *)0)->our_field) == sizeof(((theirs *)0)->their_field),       \
                   #ours "." #our_field)

SAME_SIZE(nvtx_export_callbacks, NvtxExportTableCallbacks);
SAME_PLACE(nvtx_export_callbacks, get_table, NvtxExportTableCallbacks, GetModuleFunctionTable);
SAME_SIZE(nvtx_export_version, NvtxExportTableVersionInfo);
SAME_PLACE(nvtx_export_version, version, NvtxExportTableVersionInfo, version);
SAME_PLACE(nvtx_export_version, set_tool_version, NvtxExportTableVersionInfo,
           SetInjectionNvtxVersion);

SAME_SIZE(nvtx_event, nvtxEventAttributes_t);
SAME_PLACE(nvtx_event, version, nvtxEventAttributes_t, version);
SAME_PLACE(nvtx_event, size, nvtxEventAttributes_t, size);
SAME_PLACE(nvtx_event, category, nvtxEventAttributes_t, category);
SAME_PLACE(nvtx_event, color_type, nvtxEventAttributes_t, colorType);
SAME_PLACE(nvtx_event, color, nvtxEventAttributes_t, color);
SAME_PLACE(nvtx_event, payload_type, nvtxEventAttributes_t, payloadType);
SAME_PLACE(nvtx_event, payload, nvtxEventAttributes_t, payload);
SAME_PLACE(nvtx_event, message_type, nvtxEventAttributes_t, messageType);
SAME_PLACE(nvtx_event, message, nvtxEventAttributes_t, message);

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

SAME_SIZE(nvtx_span, nvtxMemVirtualRangeDesc_t);
SAME_PLACE(nvtx_span, size, nvtxMemVirtualRangeDesc_t, size);
SAME_PLACE(nvtx_span, address, nvtxMemVirtualRangeDesc_t, ptr);
SAME_SIZE(nvtx_heap_description, nvtxMemHeapDesc_t);
SAME_PLACE(nvtx_heap_description, compat_id, nvtxMemHeapDesc_t, extCompatID);
SAME_PLACE(nvtx_heap_description, struct_size, nvtxMemHeapDesc_t, structSize);
SAME_PLACE(nvtx_heap_description, usage, nvtxMemHeapDesc_t, usage);
SAME_PLACE(nvtx_heap_description, type, nvtxMemHeapDesc_t, type);
SAME_PLACE(nvtx_heap_description, type_size, nvtxMemHeapDesc_t, typeSpecificDescSize);
SAME_PLACE(nvtx_heap_description, type_description, nvtxMemHeapDesc_t, typeSpecificDesc);
SAME_PLACE(nvtx_heap_description, category, nvtxMemHeapDesc_t, category);
SAME_PLACE(nvtx_heap_description, message_type, nvtxMemHeapDesc_t, messageType);
SAME_PLACE(nvtx_heap_description, message, nvtxMemHeapDesc_t, message);
SAME_SIZE(nvtx_register_batch, nvtxMemRegionsRegisterBatch_t);
SAME_PLACE(nvtx_register_batch, type, nvtxMemRegionsRegisterBatch_t, regionType);
SAME_PLACE(nvtx_register_batch, heap, nvtxMemRegionsRegisterBatch_t, heap);
SAME_PLACE(nvtx_register_batch, n_regions, nvtxMemRegionsRegisterBatch_t, regionCount);
SAME_PLACE(nvtx_register_batch, region_size, nvtxMemRegionsRegisterBatch_t, regionDescElementSize);
SAME_PLACE(nvtx_register_batch, regions, nvtxMemRegionsRegisterBatch_t, regionDescElements);
SAME_PLACE(nvtx_register_batch, handles_out, nvtxMemRegionsRegisterBatch_t,
           regionHandleElementsOut);
SAME_SIZE(nvtx_unregister_batch, nvtxMemRegionsUnregisterBatch_t);
SAME_PLACE(nvtx_unregister_batch, reference_type, nvtxMemRegionsUnregisterBatch_t, refType);
SAME_PLACE(nvtx_unregister_batch, n_references, nvtxMemRegionsUnregisterBatch_t, refCount);
SAME_PLACE(nvtx_unregister_batch, reference_size, nvtxMemRegionsUnregisterBatch_t, refElementSize);
SAME_PLACE(nvtx_unregister_batch, references, nvtxMemRegionsUnregisterBatch_t, refElements);
SAME_SIZE(nvtx_name, nvtxMemRegionNameDesc_t);
SAME_PLACE(nvtx_name, reference_type, nvtxMemRegionNameDesc_t, regionRefType);
SAME_PLACE(nvtx_name, name_type, nvtxMemRegionNameDesc_t, nameType);
SAME_PLACE(nvtx_name, region, nvtxMemRegionNameDesc_t, region);
SAME_PLACE(nvtx_name, name, nvtxMemRegionNameDesc_t, name);
SAME_PLACE(nvtx_name, category, nvtxMemRegionNameDesc_t, category);
SAME_SIZE(nvtx_name_batch, nvtxMemRegionsNameBatch_t);
SAME_PLACE(nvtx_name_batch, n_names, nvtxMemRegionsNameBatch_t, regionCount);
SAME_PLACE(nvtx_name_batch, name_size, nvtxMemRegionsNameBatch_t, regionElementSize);
SAME_PLACE(nvtx_name_batch, names, nvtxMemRegionsNameBatch_t, regionElements);

/* ---- Constants ------------------------------------------------------------------------------- */

#define SAME_VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)

SAME_VALUE(NVTX_INTERFACE_VERSION, NVTX_VERSION);
SAME_VALUE(NVTX_TABLE_CORE, NVTX_CB_MODULE_CORE);
SAME_VALUE(NVTX_TABLE_CUDA, NVTX_CB_MODULE_CUDA);
SAME_VALUE(NVTX_TABLE_OPENCL, NVTX_CB_MODULE_OPENCL);
SAME_VALUE(NVTX_TABLE_CUDART, NVTX_CB_MODULE_CUDART);
SAME_VALUE(NVTX_TABLE_CORE2, NVTX_CB_MODULE_CORE2);
SAME_VALUE(NVTX_TABLE_SYNC, NVTX_CB_MODULE_SYNC);
SAME_VALUE(NVTX_CORE_SLOTS, NVTX_CBID_CORE_SIZE);
SAME_VALUE(NVTX_CUDA_SLOTS, NVTX_CBID_CUDA_SIZE);
SAME_VALUE(NVTX_OPENCL_SLOTS, NVTX_CBID_OPENCL_SIZE);
SAME_VALUE(NVTX_CUDART_SLOTS, NVTX_CBID_CUDART_SIZE);
SAME_VALUE(NVTX_CORE2_SLOTS, NVTX_CBID_CORE2_SIZE);
SAME_VALUE(NVTX_SYNC_SLOTS, NVTX_CBID_SYNC_SIZE);
SAME_VALUE(NVTX_SLOT_PUSH, NVTX_CBID_CORE2_DomainRangePushEx);
SAME_VALUE(NVTX_SLOT_POP, NVTX_CBID_CORE2_DomainRangePop);
SAME_VALUE(NVTX_SLOT_DOMAIN_CREATE, NVTX_CBID_CORE2_DomainCreateA);
SAME_VALUE(NVTX_EXPORT_CALLBACKS, NVTX_ETID_CALLBACKS);
SAME_VALUE(NVTX_EXPORT_VERSION, NVTX_ETID_VERSIONINFO);
SAME_VALUE(NVTX_MESSAGE_ASCII, NVTX_MESSAGE_TYPE_ASCII);
SAME_VALUE(NVTX_PAYLOAD_UINT64, NVTX_PAYLOAD_TYPE_UNSIGNED_INT64);
SAME_VALUE(NVTX_MEMORY_MODULE, NVTX_EXT_MODULEID_MEM);
SAME_VALUE(NVTX_MEMORY_COMPAT, NVTX_EXT_COMPATID_MEM);
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
