// What generated code uses of ONNX Runtime's C API, declared for a compiler that checks types.
// Written from its documentation; the real header takes its place where ORT_INCLUDE_DIR names it.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
#define ORTCHAR_T char
#define ORT_TSTR(X) X
typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtArenaCfg OrtArenaCfg;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtCUDAProviderOptionsV2 OrtCUDAProviderOptionsV2;
typedef enum GraphOptimizationLevel {
  ORT_DISABLE_ALL = 0,
  ORT_ENABLE_BASIC = 1,
  ORT_ENABLE_EXTENDED = 2,
  ORT_ENABLE_LAYOUT = 3,
  ORT_ENABLE_ALL = 99
} GraphOptimizationLevel;
typedef enum ExecutionMode { ORT_SEQUENTIAL = 0, ORT_PARALLEL = 1 } ExecutionMode;
typedef enum OrtAllocatorType { OrtDeviceAllocator = 0, OrtArenaAllocator = 1 } OrtAllocatorType;
typedef enum OrtMemType { OrtMemTypeDefault = 0 } OrtMemType;
typedef struct OrtApi {
  OrtStatus* (*CreateSession)(const OrtEnv*, const ORTCHAR_T*, const OrtSessionOptions*, OrtSession**);
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions**);
  OrtStatus* (*SetSessionGraphOptimizationLevel)(OrtSessionOptions*, GraphOptimizationLevel);
  OrtStatus* (*SetSessionExecutionMode)(OrtSessionOptions*, ExecutionMode);
  OrtStatus* (*EnableMemPattern)(OrtSessionOptions*);
  OrtStatus* (*DisableMemPattern)(OrtSessionOptions*);
  OrtStatus* (*EnableCpuMemArena)(OrtSessionOptions*);
  OrtStatus* (*DisableCpuMemArena)(OrtSessionOptions*);
  OrtStatus* (*SetIntraOpNumThreads)(OrtSessionOptions*, int);
  OrtStatus* (*SetInterOpNumThreads)(OrtSessionOptions*, int);
  OrtStatus* (*SetDeterministicCompute)(OrtSessionOptions*, bool);
  OrtStatus* (*AddSessionConfigEntry)(OrtSessionOptions*, const char*, const char*);
  OrtStatus* (*CreateRunOptions)(OrtRunOptions**);
  OrtStatus* (*AddRunConfigEntry)(OrtRunOptions*, const char*, const char*);
  OrtStatus* (*CreateArenaCfgV2)(const char* const*, const size_t*, size_t, OrtArenaCfg**);
  OrtStatus* (*CreateMemoryInfo)(const char*, OrtAllocatorType, int, OrtMemType, OrtMemoryInfo**);
  OrtStatus* (*CreateAndRegisterAllocator)(OrtEnv*, const OrtMemoryInfo*, const OrtArenaCfg*);
  OrtStatus* (*CreateAndRegisterAllocatorV2)(OrtEnv*, const char*, const OrtMemoryInfo*, const OrtArenaCfg*,
                                             const char* const*, const char* const*, size_t);
  OrtStatus* (*CreateCUDAProviderOptions)(OrtCUDAProviderOptionsV2**);
  OrtStatus* (*UpdateCUDAProviderOptions)(OrtCUDAProviderOptionsV2*, const char* const*,
                                          const char* const*, size_t);
  OrtStatus* (*SessionOptionsAppendExecutionProvider_CUDA_V2)(OrtSessionOptions*,
                                                              const OrtCUDAProviderOptionsV2*);
  void (*ReleaseSessionOptions)(OrtSessionOptions*);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo*);
  void (*ReleaseArenaCfg)(OrtArenaCfg*);
  void (*ReleaseCUDAProviderOptions)(OrtCUDAProviderOptionsV2*);
} OrtApi;
#ifdef __cplusplus
}
#endif
