/* The part of the CUDA driver's and NVML's binary interface that berth uses, in its own words: no
   toolkit is needed to build. */
#ifndef BERTH_CU_H
#define BERTH_CU_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUhandle; /* CUmemGenericAllocationHandle */
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmap_st *CUmipmap;
typedef struct CUpool_st *CUpool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUnode_st *CUnode;
typedef struct CUexec_st *CUexec;
typedef struct CUgreen_st *CUgreen;
typedef struct CUext_st *CUext;
typedef struct CUkern_st *CUkernel;
typedef struct CUtex_st *CUtexture;
typedef struct CUsurf_st *CUsurface;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_CAPTURE_INVALIDATED = 901,
};

enum {
    CU_LOCATION_DEVICE = 1,
    CU_LOCATION_HOST = 2,
    CU_LOCATION_HOST_LAST = 4,
    CU_LOCATION_DEVICE_PART = 6
}; /* a part: the id's low byte is the device */
enum { CU_ALLOCATION_MANAGED = 2 };
enum {
    CU_POOL_RELEASE_THRESHOLD = 4,
    CU_POOL_RESERVED_CURRENT = 5,
    CU_POOL_RESERVED_HIGH = 6,
    CU_POOL_USED_CURRENT = 7,
    CU_POOL_ALLOCATION_TYPE = 9,
    CU_POOL_LOCATION_ID = 11,
    CU_POOL_LOCATION_TYPE = 12
};
enum { CU_POINTER_MEMORY_TYPE = 2, CU_POINTER_IS_MANAGED = 8 };
enum { CU_GRAPH_MEM_USED_CURRENT = 0, CU_GRAPH_MEM_RESERVED_CURRENT = 2 };
enum { CU_NODE_KERNEL = 0, CU_NODE_GRAPH = 4, CU_NODE_MEM_ALLOC = 10, CU_NODE_MEM_FREE = 11 };
enum {
    CU_ARRAY_LAYERED = 0x01,
    CU_ARRAY_CUBEMAP = 0x04,
    CU_ARRAY_SPARSE = 0x40,
    CU_ARRAY_DEFERRED = 0x80
};
enum { CU_LOOKUP_FOUND = 0, CU_LOOKUP_NO_SYMBOL = 1, CU_LOOKUP_OLD_VERSION = 2 };
enum { CU_LOOKUP_PER_THREAD = 2 };
enum {
    CU_LIMIT_STACK = 0,
    CU_LIMIT_PRINTF = 1,
    CU_LIMIT_HEAP = 2,
    CU_LIMIT_SYNC_DEPTH = 3,
    CU_LIMITS = 16
};
enum { CU_FUNCTION_LOCAL_BYTES = 3 }; /* of its attributes: for each thread */
enum { CU_ATTRIBUTE_SMS = 16, CU_ATTRIBUTE_SM_THREADS = 39, CU_ATTRIBUTE_PAGEABLE = 88 };
enum { CU_OPERATION_MAP = 1, CU_OPERATION_UNMAP = 2 };
enum { CU_FOR_TILES = 1 };   /* the only usage flag of memory: for tiles of sparse arrays */
enum { CU_CHILD_MOVES = 1 }; /* the child graph moves into its parent, which owns it from then on */
enum { CU_SHARE_FD = 1, CU_SHARE_FABRIC = 8, CU_FABRIC_BYTES = 64 };
enum { CU_LOADING_EAGER = 1, CU_LOADING_LAZY = 2 };
enum { CU_CAPTURE_NONE = 0, CU_CAPTURE_RELAXED = 2 };

typedef struct {
    unsigned char bytes[16];
} CUuuid;
typedef struct {
    int type, id;
} CUlocation;

typedef struct {
    int type, handle_types;
    CUlocation location;
    void *win32;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} CUalloc_prop;

typedef struct {
    int type, handle_types;
    CUlocation location;
    void *win32;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
} CUpool_props;

typedef struct {
    CUpool_props pool;
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr ptr;
} CUmem_node;

typedef struct {
    int type, reserved[3];
    union {
        long long space[29];
        CUmem_node alloc;
        struct {
            CUgraph graph;
            int ownership;
        } child;
    } as;
    long long reserved_end;
} CUnode_params;

typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} CUarray_desc;
typedef struct {
    unsigned width, height;
    int format;
    unsigned channels;
} CUarray_desc_v1;
typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} CUarray3d_desc;
typedef struct {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
} CUarray3d_desc_v1;

typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} CUlaunch;

typedef struct {
    char bytes[64];
} CUipc;

/* Where a part of a sparse array lies; the same bytes are the same part. */
typedef struct {
    int resource_type;
    void *resource;
    int part_type;
    union {
        struct {
            unsigned level, layer, x, y, z, width, height, depth;
        } level;
        struct {
            unsigned layer;
            unsigned long long offset, size;
        } tail;
    } part;
    int operation, handle_type;
    CUhandle handle;
    unsigned long long offset;
    unsigned device_mask, flags, reserved[2];
} CUmap_info;

typedef struct {
    int type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
        const void *object;
    } handle;
    unsigned long long size;
    unsigned flags, reserved[16];
} CUext_desc;

typedef struct {
    unsigned devices;
    size_t size;
    unsigned long long handle_types, flags;
} CUmulticast_prop;

typedef struct {
    CUfunction function;
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    void **params;
} CUcooperative;

_Static_assert(sizeof(CUalloc_prop) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(CUpool_props) == 88, "CUmemPoolProps");
_Static_assert(sizeof(CUmem_node) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");
_Static_assert(sizeof(CUnode_params) == 256, "CUgraphNodeParams");
_Static_assert(sizeof(CUarray3d_desc) == 40, "CUDA_ARRAY3D_DESCRIPTOR");
_Static_assert(sizeof(CUlaunch) == 56, "CUlaunchConfig");
_Static_assert(sizeof(CUmap_info) == 96, "CUarrayMapInfo");
_Static_assert(sizeof(CUext_desc) == 104, "CUDA_EXTERNAL_MEMORY_HANDLE_DESC");
_Static_assert(sizeof(CUmulticast_prop) == 32, "CUmulticastObjectProp");

/* NVML */
typedef struct NVdevice_st *NVdevice;
typedef struct {
    unsigned long long total, free, used;
} NVmemory;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} NVmemory_v2;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
} NVprocess_v1;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} NVprocess;
typedef struct {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm_pct, mem_pct, enc_pct, dec_pct;
} NVutilization;
/* nvmlProcessUtilizationInfo_v1_t and the list that it comes in */
typedef struct {
    unsigned long long time_us;
    unsigned pid, sm_pct, mem_pct, enc_pct, dec_pct, jpg_pct, ofa_pct;
} NVutilization_v1;
typedef struct {
    unsigned version, count;
    unsigned long long since_us;
    NVutilization_v1 *list;
} NVutilizations;
/* nvmlProcessDetail_v1_t and the list that it comes in */
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
    unsigned long long protected_bytes;
} NVdetail;
typedef struct {
    unsigned version, mode, count;
    NVdetail *list;
} NVdetails;
typedef struct {
    unsigned gpu_pct, mem_pct;
    unsigned long long peak_bytes, time_ms, start_us;
    unsigned running, reserved[5];
} NVaccount;
typedef struct {
    unsigned gpu_pct, mem_pct;
} NVrates;
enum {
    NV_SUCCESS = 0,
    NV_UNINITIALIZED = 1,
    NV_INVALID_ARGUMENT = 2,
    NV_NOT_FOUND = 6,
    NV_INSUFFICIENT_SIZE = 7,
    NV_FUNCTION_NOT_FOUND = 13,
    NV_ARGUMENT_VERSION_MISMATCH = 25,
};
enum { NV_UTILIZATIONS_V1 = 0x1000018, NV_DETAILS_V1 = 0x1000018 };
_Static_assert(sizeof(NVprocess) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(NVutilization) == 32, "nvmlProcessUtilizationSample_t");
_Static_assert(sizeof(NVutilization_v1) == 40, "nvmlProcessUtilizationInfo_v1_t");
_Static_assert(sizeof(NVutilizations) == 24, "nvmlProcessesUtilizationInfo_v1_t");
_Static_assert(sizeof(NVdetail) == 32, "nvmlProcessDetail_v1_t");
_Static_assert(sizeof(NVdetails) == 24, "nvmlProcessDetailList_v1_t");
_Static_assert(sizeof(NVaccount) == 56, "nvmlAccountingStats_t");

#endif
