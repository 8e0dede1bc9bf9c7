// The CUDA runtime (libcudart), as far as PyTorch asks for it. What is not here answers "not supported", see build.py.
#include "device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

using namespace fake;

namespace {

struct Event {
  int device;
  int64_t at_ns = -1;
  bool has_time = true;
};
Event* event_of(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle); }

struct Allocation {
  size_t bytes;
  int device;
};
std::mutex lock;
std::map<void*, Allocation> allocations;  // by cudaMalloc
std::map<void*, size_t> pinned;           // host memory

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

// An H100, but for its name and its compute capability.
cudaDeviceProp properties_of(int device) {
  cudaDeviceProp p{};
  snprintf(p.name, sizeof p.name, "%s", settings().name);
  // GPU-11111111-aaaa-bbbb-cccc-000000000001 and so on, as in libnvidia-ml.c
  unsigned char repeated = static_cast<unsigned char>(0x11 * (device + 1)),
                last = static_cast<unsigned char>(device + 1);
  const unsigned char uuid[16] = {repeated, repeated, repeated, repeated, 0xaa, 0xaa, 0xbb, 0xbb,
                                  0xcc,     0xcc,     0,        0,        0,    0,    0,    last};
  memcpy(p.uuid.bytes, uuid, sizeof uuid);
  p.totalGlobalMem = settings().memory_bytes;
  p.major = settings().major;
  p.minor = settings().minor;
  p.multiProcessorCount = 132;
  p.sharedMemPerBlock = 49152;
  p.sharedMemPerBlockOptin = 232448;
  p.sharedMemPerMultiprocessor = 233472;
  p.reservedSharedMemPerBlock = 1024;
  p.regsPerBlock = p.regsPerMultiprocessor = p.totalConstMem = 65536;
  p.warpSize = 32;
  p.maxThreadsPerBlock = p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  p.memPitch = p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.textureAlignment = p.surfaceAlignment = 512;
  p.texturePitchAlignment = 32;
  p.l2CacheSize = 50 << 20;
  p.memoryBusWidth = 5120;
  p.asyncEngineCount = 3;
  p.pciBusID = 0x1B + device;
  p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = p.managedMemory = p.cooperativeLaunch = 1;
  p.streamPrioritiesSupported = p.globalL1CacheSupported = p.localL1CacheSupported = p.memoryPoolsSupported = 1;
  return p;
}

bool exists(int device) { return device >= 0 && device < settings().devices; }

}  // namespace

namespace fake {

int attribute(int which, int device) {
  cudaDeviceProp p = properties_of(device);
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: return p.maxThreadsPerBlock;
    case cudaDevAttrMaxBlockDimZ: return p.maxThreadsDim[2];
    case cudaDevAttrMaxGridDimX: return p.maxGridSize[0];
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return p.maxGridSize[1];
    case cudaDevAttrMaxSharedMemoryPerBlock: return int(p.sharedMemPerBlock);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return int(p.sharedMemPerBlockOptin);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return int(p.sharedMemPerMultiprocessor);
    case cudaDevAttrReservedSharedMemoryPerBlock: return int(p.reservedSharedMemPerBlock);
    case cudaDevAttrTotalConstantMemory: return int(p.totalConstMem);
    case cudaDevAttrWarpSize: return p.warpSize;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: return p.regsPerBlock;
    case cudaDevAttrClockRate: return 1980000;
    case cudaDevAttrMemoryClockRate: return 2619000;
    case cudaDevAttrGlobalMemoryBusWidth: return p.memoryBusWidth;
    case cudaDevAttrMultiProcessorCount: return p.multiProcessorCount;
    case cudaDevAttrL2CacheSize: return p.l2CacheSize;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return p.maxThreadsPerMultiProcessor;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return p.maxBlocksPerMultiProcessor;
    case cudaDevAttrComputeCapabilityMajor: return p.major;
    case cudaDevAttrComputeCapabilityMinor: return p.minor;
    case cudaDevAttrPciBusId: return p.pciBusID;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrMemoryPoolsSupported: return 1;
    default: return 0;
  }
}

}  // namespace fake

// ---- kernels: nvcc's stubs register them by name, and launch them by the address of the stub

EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                                   int*) {
  name_function(stub, name);
}
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORT void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st* stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t,
                                      cudaStream_t stream) {
  return launch_function(kernel, grid, block, arguments, stream);
}
EXPORT cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments, size_t,
                                    cudaStream_t stream) {
  return launch_function(stub, grid, block, arguments, stream);
}
EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* stub, dim3 grid, dim3 block, void** arguments, size_t,
                                               cudaStream_t stream) {
  return launch_function(stub, grid, block, arguments, stream);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* stub, void** arguments) {
  return launch_function(stub, how->gridDim, how->blockDim, arguments, how->stream);
}
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  wait_until(end_of(stream_of(stream)));
  function(data);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
  wait_until(end_of(stream_of(stream)));
  function(stream, cudaSuccess, data);
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 10 * settings().major + settings().minor;
  attributes->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t) {
  *blocks = std::max(1, 2048 / std::max(threads, 1));
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* stub, int threads,
                                                                          size_t shared_bytes, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, stub, threads, shared_bytes);
}
EXPORT cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static char symbols[1 << 16];
  *address = symbols;
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }

// ---- devices

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = settings().devices;
  return *count ? cudaSuccess : fail(cudaErrorNoDevice, "cudaGetDeviceCount");
}
EXPORT cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
EXPORT cudaError_t cudaSetDevice(int device) {
  return set_current_device(device) ? cudaSuccess : fail(cudaErrorInvalidDevice, "cudaSetDevice");
}
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!exists(device)) return fail(cudaErrorInvalidDevice, "cudaGetDeviceProperties");
  *properties = properties_of(device);
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (!exists(device)) return fail(cudaErrorInvalidDevice, "cudaDeviceGetAttribute");
  *value = attribute(which, device);
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
  snprintf(id, size, "0000:%02X:00.0", 0x1B + device);
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int other) {
  *can = device != other;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  *version = kDriverVersion;
  return cudaSuccess;
}
EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  wait_until(end_of_device(current_device()));
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetLastError() { return last_error(true); }
EXPORT cudaError_t cudaPeekAtLastError() { return last_error(false); }
EXPORT const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorNotSupported: return "operation not supported";
    default: return "an error of the fake GPU";
  }
}
EXPORT const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}
EXPORT cudaError_t cudaProfilerStart() { return cudaSuccess; }
EXPORT cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- memory

EXPORT cudaError_t cudaMalloc(void** address, size_t bytes) {
  *address = nullptr;
  if (!bytes) return cudaSuccess;
  int device = current_device();
  if (!take_memory(device, bytes)) return fail(cudaErrorMemoryAllocation, "cudaMalloc");
  *address = reinterpret_cast<void*>(reserve_addresses(device, bytes));
  std::lock_guard<std::mutex> guard(lock);
  allocations[*address] = {bytes, device};
  return cudaSuccess;
}
EXPORT cudaError_t cudaFree(void* address) {
  if (!address) return cudaSuccess;
  std::lock_guard<std::mutex> guard(lock);
  auto found = allocations.find(address);
  if (found == allocations.end()) return fail(cudaErrorInvalidValue, "cudaFree");
  return_memory(found->second.device, found->second.bytes);
  forget_contents(address, found->second.bytes);
  allocations.erase(found);
  return cudaSuccess;
}
EXPORT cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t) { return cudaMalloc(address, bytes); }
EXPORT cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }
EXPORT cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned) { return cudaMalloc(address, bytes); }
EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = free_memory(current_device());
  *total = settings().memory_bytes;
  return cudaSuccess;
}

EXPORT cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  std::lock_guard<std::mutex> guard(lock);
  pinned[address] = bytes;
  return cudaSuccess;
}
EXPORT cudaError_t cudaHostUnregister(void* address) {
  std::lock_guard<std::mutex> guard(lock);
  pinned.erase(address);
  return cudaSuccess;
}
EXPORT cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned flags) {
  *address = nullptr;
  if (posix_memalign(address, 4096, std::max<size_t>(bytes, 1)))
    return fail(cudaErrorMemoryAllocation, "cudaHostAlloc");
  return cudaHostRegister(*address, bytes, flags);
}
EXPORT cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
EXPORT cudaError_t cudaFreeHost(void* address) {
  cudaHostUnregister(address);
  free(address);
  return cudaSuccess;
}
EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->device = device_at(pointer);
  if (attributes->device >= 0) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  std::lock_guard<std::mutex> guard(lock);
  auto next = pinned.upper_bound(const_cast<void*>(pointer));
  bool is_pinned = next != pinned.begin() && (--next, pointer < static_cast<char*>(next->first) + next->second);
  attributes->type = is_pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  if (is_pinned) {
    attributes->device = current_device();
    attributes->devicePointer = attributes->hostPointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  cudaError_t error = copy(to, from, bytes, nullptr);
  if (error == cudaSuccess) wait_until(end_of(stream_of(nullptr)));
  return error;
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                     size_t height, cudaMemcpyKind, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++)
    memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  return launch(stream, "Memcpy 2D", settings().kernel_ns, Work::kCopyOnDevice, width * height);
}
EXPORT cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  if (bytes <= (1 << 20)) memset(address, value, bytes);  // what may be read back; more would only make memory exist
  return launch(stream, "Memset", settings().kernel_ns + double(bytes) / 3000, Work::kMemset, bytes);
}
EXPORT cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  return cudaMemsetAsync(address, value, bytes, nullptr);
}

// ---- streams and events: refused where the driver refuses them

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  *stream = reinterpret_cast<cudaStream_t>(create_stream(priority));
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }  // kept: its launches are reported
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = priority_of(stream_of(stream));
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return now_ns() >= end_of(stream_of(stream)) ? cudaSuccess : cudaErrorNotReady;
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  wait_until(end_of(stream_of(stream)));
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  delay(stream_of(stream), event_of(event)->at_ns);
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = reinterpret_cast<cudaEvent_t>(new Event{current_device(), -1, !(flags & cudaEventDisableTiming)});
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event_of(event);
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned) {
  Event* event = event_of(handle);
  Stream* stream = stream_of(on);
  if (event->device != device_of(stream)) return fail(cudaErrorInvalidResourceHandle, "cudaEventRecord");
  delay(stream, now_ns());
  event->at_ns = end_of(stream);
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  return now_ns() >= event_of(event)->at_ns ? cudaSuccess : cudaErrorNotReady;
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  wait_until(event_of(event)->at_ns);
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventElapsedTime(float* elapsed_ms, cudaEvent_t from, cudaEvent_t to) {
  const Event *first = event_of(from), *last = event_of(to);
  bool have_times = first->has_time && last->has_time && first->at_ns >= 0 && last->at_ns >= 0;
  if (!have_times || first->device != last->device) return fail(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime");
  if (now_ns() < std::max(first->at_ns, last->at_ns)) return fail(cudaErrorNotReady, "cudaEventElapsedTime");
  *elapsed_ms = float(double(last->at_ns - first->at_ns) / 1e6);
  return cudaSuccess;
}

// ---- graphs: what is captured is counted as launched then, and replayed as one piece of work

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = is_capturing(stream_of(stream)) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  set_capturing(stream_of(stream), true);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  set_capturing(stream_of(stream), false);
  *graph = reinterpret_cast<cudaGraph_t>(stream_of(stream));
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** nodes,
                                            const cudaGraphEdgeData** edges, size_t* count) {
  cudaStreamIsCapturing(stream, status);
  Stream* capturing = is_capturing(stream_of(stream)) ? stream_of(stream) : nullptr;
  if (id) *id = reinterpret_cast<unsigned long long>(capturing);
  if (graph) *graph = reinterpret_cast<cudaGraph_t>(capturing);
  if (nodes) *nodes = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t* program, cudaGraph_t graph, unsigned long long) {
  *program = reinterpret_cast<cudaGraphExec_t>(graph);
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* program, cudaGraph_t graph,
                                                 unsigned long long flags) {
  return cudaGraphInstantiate(program, graph, flags);
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t stream) {
  constexpr double kGraphNs = 100000;
  return launch(stream, "a captured graph", kGraphNs);
}
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = 1;
  return cudaSuccess;
}
