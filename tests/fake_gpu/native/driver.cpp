// The CUDA driver (libcuda), as far as PyTorch and Triton ask for it.
#include "device.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

using namespace fake;

namespace fake {
int attribute(int which, int device);
}

namespace {

CUresult driver(cudaError_t error) { return CUresult(error); }  // the runtime's numbers are the driver's

// ---- memory in pages: `expandable_segments` maps them into reserved addresses

struct Pages {
  size_t bytes;
  int device;
};
std::mutex lock;
std::map<CUmemGenericAllocationHandle, Pages> created;

CUresult refused() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace

EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  *address = reserve_addresses(current_device(), bytes);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  forget_contents(reinterpret_cast<void*>(address), bytes);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                            unsigned long long) {
  if (properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  if (bytes % kPageBytes) return CUDA_ERROR_INVALID_VALUE;
  if (!take_memory(properties->location.id, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  static CUmemGenericAllocationHandle next = 1;
  std::lock_guard<std::mutex> guard(lock);
  *handle = next++;
  created[*handle] = {bytes, properties->location.id};
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = created.find(handle);
  if (found == created.end()) return CUDA_ERROR_INVALID_VALUE;
  return_memory(found->second.device, found->second.bytes);
  created.erase(found);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) { return cuMemAddressFree(address, bytes); }
EXPORT CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) { return driver(cudaMemGetInfo(free, total)); }
EXPORT CUresult cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr address) {
  int device = device_at(reinterpret_cast<void*>(address));
  if (which == CU_POINTER_ATTRIBUTE_CONTEXT)
    *static_cast<uintptr_t*>(value) = device + 1;
  else if (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
    *static_cast<CUdeviceptr*>(value) = address;
  else
    *static_cast<int*>(value) = 0;
  return CUDA_SUCCESS;
}

// ---- devices and contexts: the context of device n is n + 1

EXPORT CUresult cuInit(unsigned) { return settings().devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
EXPORT CUresult cuDriverGetVersion(int* version) { return driver(cudaDriverGetVersion(version)); }
EXPORT CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return number < settings().devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
EXPORT CUresult cuDeviceGetCount(int* count) {
  *count = settings().devices;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  snprintf(name, size, "%s", settings().name);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = settings().memory_bytes;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  *value = attribute(which, device);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceProperties(&properties, device);
  memcpy(uuid, &properties.uuid, sizeof *uuid);
  return driver(error);
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(uintptr_t(device) + 1);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) { return cuDevicePrimaryCtxRetain(context, current_device()); }
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  if (context) set_current_device(int(reinterpret_cast<uintptr_t>(context)) - 1);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) { return cuCtxSetCurrent(context); }
EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxGetLimit(size_t* value, CUlimit) {
  *value = 1024;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(cudaError_t(error));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = cudaGetErrorName(cudaError_t(error));
  return CUDA_SUCCESS;
}

// ---- kernels that were compiled while the program runs: a function is its name

namespace {
CUmodule module() {
  static char any;
  return reinterpret_cast<CUmodule>(&any);
}
const char* name_of(CUfunction function) { return reinterpret_cast<const char*>(function); }
}  // namespace

EXPORT CUresult cuModuleLoadData(CUmodule* loaded, const void*) {
  *loaded = module();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleLoadDataEx(CUmodule* loaded, const void* image, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(loaded, image);
}
EXPORT CUresult cuModuleLoad(CUmodule* loaded, const char*) { return cuModuleLoadData(loaded, nullptr); }
EXPORT CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = reinterpret_cast<CUfunction>(const_cast<char*>(kept(name)));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr*, size_t*, CUmodule, const char*) { return CUDA_ERROR_NOT_FOUND; }
EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
EXPORT CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned, CUstream stream, void**, void**) {
  return driver(launch(stream, name_of(function), settings().kernel_ns, Work::kKernel, 0, {grid_x, grid_y, grid_z},
                       {block_x, block_y, block_z}));
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* how, CUfunction function, void** arguments, void** extra) {
  return cuLaunchKernel(function, how->gridDimX, how->gridDimY, how->gridDimZ, how->blockDimX, how->blockDimY,
                        how->blockDimZ, 0, how->hStream, arguments, extra);
}
EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                          CUstream stream, void** arguments) {
  return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments,
                        nullptr);
}
EXPORT CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  *clusters = 132;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
  *blocks = 2;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                       const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                       CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  *map = {};
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return driver(cudaStreamIsCapturing(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status)));
}

// ---- functions by name: all of the above are found by the dynamic linker

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* status) {
  std::string name = symbol;
  *function = nullptr;
  for (const std::string& candidate : {name, name + "_v2"})
    if (!*function) *function = dlsym(RTLD_DEFAULT, candidate.c_str());
  if (!*function) *function = reinterpret_cast<void*>(refused);
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                           cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, kDriverVersion, flags, status);
}
EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult* status) {
  cudaGetDriverEntryPointByVersion(symbol, function, kDriverVersion, 0, nullptr);
  bool found = *function != reinterpret_cast<void*>(refused);
  if (status) *status = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
