// What generated code uses of ONNX Runtime's C++ API; see onnxruntime_c_api.h beside it.
#pragma once
#include <cstddef>
#include <string>
#include <unordered_map>

#include "onnxruntime_c_api.h"

namespace Ort {
struct SessionOptions {
  SessionOptions& SetGraphOptimizationLevel(GraphOptimizationLevel);
  SessionOptions& SetExecutionMode(ExecutionMode);
  SessionOptions& EnableMemPattern();
  SessionOptions& DisableMemPattern();
  SessionOptions& EnableCpuMemArena();
  SessionOptions& DisableCpuMemArena();
  SessionOptions& SetIntraOpNumThreads(int);
  SessionOptions& SetInterOpNumThreads(int);
  SessionOptions& SetDeterministicCompute(bool);
  SessionOptions& AddConfigEntry(const char*, const char*);
  SessionOptions& AppendExecutionProvider_CUDA_V2(const OrtCUDAProviderOptionsV2&);
};
struct ArenaCfg {
  explicit ArenaCfg(const std::unordered_map<std::string, size_t>&);
  operator OrtArenaCfg*() const;
};
struct MemoryInfo {
  MemoryInfo(const char*, OrtAllocatorType, int, OrtMemType);
  operator OrtMemoryInfo*() const;
};
struct CUDAProviderOptions {
  CUDAProviderOptions();
  void Update(const std::unordered_map<std::string, std::string>&);
  operator OrtCUDAProviderOptionsV2*() const;
};
struct Env {
  Env& CreateAndRegisterAllocator(const OrtMemoryInfo*, const OrtArenaCfg*);
  Env& CreateAndRegisterAllocatorV2(const std::string&, const OrtMemoryInfo*,
                                    const std::unordered_map<std::string, std::string>&,
                                    const OrtArenaCfg*);
};
struct Session {
  Session(const Env&, const ORTCHAR_T*, const SessionOptions&);
};
struct RunOptions {
  RunOptions& AddConfigEntry(const char*, const char*);
};
}  // namespace Ort
