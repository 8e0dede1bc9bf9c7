// Runs PyTorch's CUDACachingAllocator (libc10_cuda.so) without a GPU.
//
// The functions of the CUDA runtime defined here come before those of libcudart in the search order of the linker; the
// driver's functions are handed out by cudaGetDriverEntryPointByVersion. Memory exists only as a count of bytes and as
// addresses, which ascend as those of sysbench.simulate.device_memory do.
//
// usage: driver CAPACITY_BYTES < commands, with the settings in PYTORCH_CUDA_ALLOC_CONF
//   a KEY SIZE STREAM  allocate        f KEY  free            e  empty the cache
//   m FRACTION         memory fraction p      reset peaks     r  forget the trace
// Freeing what could not be allocated does nothing. Writes for each command its counters (and for each allocation an
// address, or o for out of memory), then the snapshot.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>

namespace {

constexpr size_t kGranularity = 2097152;
size_t capacity = 0;
size_t taken = 0;
uint64_t next_segment = 0x7F0000000000;
uint64_t next_reserved = 0x302000000;
std::map<uint64_t, size_t> segments;
std::map<uint64_t, size_t> handles;
uint64_t next_handle = 1;

size_t whole_pages(size_t size) {
  return (size + kGranularity - 1) / kGranularity * kGranularity;
}

bool take(size_t size) {
  if (whole_pages(size) > capacity - taken) {
    return false;
  }
  taken += whole_pages(size);
  return true;
}

CUresult address_reserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr, unsigned long long) {
  *address = next_reserved;
  next_reserved += whole_pages(size);
  return CUDA_SUCCESS;
}

CUresult address_free(CUdeviceptr, size_t) { return CUDA_SUCCESS; }

CUresult create(
    CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties, unsigned long long) {
  if (properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (size % kGranularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!take(size)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = next_handle++;
  handles[*handle] = size;
  return CUDA_SUCCESS;
}

CUresult release(CUmemGenericAllocationHandle handle) {
  taken -= handles.at(handle);
  handles.erase(handle);
  return CUDA_SUCCESS;
}

CUresult map(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) { return CUDA_SUCCESS; }
CUresult unmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

CUresult get_attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult error_string(CUresult, const char** text) {
  *text = "an error of the stand-in driver";
  return CUDA_SUCCESS;
}

CUresult not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }

} // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, size_t size) {
  if (!take(size)) {
    return cudaErrorMemoryAllocation;
  }
  *address = reinterpret_cast<void*>(next_segment);
  segments[next_segment] = size;
  next_segment += whole_pages(size);
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  auto segment = segments.find(reinterpret_cast<uint64_t>(address));
  if (segment == segments.end()) {
    return cudaErrorInvalidValue;
  }
  taken -= whole_pages(segment->second);
  segments.erase(segment);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = capacity - taken;
  *total = capacity;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, "stand-in");
  properties->totalGlobalMem = capacity;
  properties->major = 9;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in runtime"; }
const char* cudaGetErrorName(cudaError_t) { return "stand-in"; }

cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned int, unsigned long long, cudaDriverEntryPointQueryResult* status) {
  static const std::map<std::string, void*> functions{
      {"cuMemAddressReserve", reinterpret_cast<void*>(address_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(address_free)},
      {"cuMemCreate", reinterpret_cast<void*>(create)},
      {"cuMemRelease", reinterpret_cast<void*>(release)},
      {"cuMemMap", reinterpret_cast<void*>(map)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(set_access)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(get_attribute)},
      {"cuGetErrorString", reinterpret_cast<void*>(error_string)}};
  auto found = functions.find(symbol);
  *function = found == functions.end() ? reinterpret_cast<void*>(not_supported) : found->second;
  if (status != nullptr) {
    *status = cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}

} // extern "C"

namespace {

using c10::CachingDeviceAllocator::RecordContext;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;

void record(CUDAAllocator* allocator) {
  allocator->recordHistory(true, nullptr, 1000000000, RecordContext::NEVER, true, {});
}

void write_counters(CUDAAllocator* allocator) {
  auto stats = allocator->getDeviceStats(0);
  printf("s");
  for (const auto* counter :
       {&stats.allocated_bytes, &stats.requested_bytes, &stats.reserved_bytes, &stats.segment, &stats.allocation}) {
    printf(" %ld %ld", static_cast<long>((*counter)[0].current), static_cast<long>((*counter)[0].peak));
  }
  printf(" %ld %ld\n", static_cast<long>(stats.num_alloc_retries), static_cast<long>(stats.num_ooms));
}

void write_snapshot(CUDAAllocator* allocator) {
  static const char* actions[] = {
      "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
      "segment_map", "segment_unmap", "snapshot", "oom"};
  auto snapshot = allocator->snapshot();
  for (const auto& entry : snapshot.device_traces.at(0)) {
    printf("t %s %zu %zu %zu\n", actions[entry.action_], entry.addr_, entry.size_,
           reinterpret_cast<size_t>(entry.stream_));
  }
  for (const auto& segment : snapshot.segments) {
    printf("g %zu %zu %zu %zu %zu %zu %d %d\n", segment.address, segment.total_size, segment.allocated_size,
           segment.active_size, segment.requested_size, reinterpret_cast<size_t>(segment.stream), segment.is_large,
           segment.is_expandable);
    for (const auto& block : segment.blocks) {
      printf("b %zu %zu %d\n", block.size, block.requested_size, block.allocated);
    }
  }
  const auto& settings = snapshot.config_metadata;
  printf("c %s\n", settings.last_allocator_settings.c_str());
  printf("d %ld %.17g %d", static_cast<long>(settings.max_split_size), settings.garbage_collection_threshold,
         settings.expandable_segments);
  for (auto divisions : settings.roundup_power2_divisions) {
    printf(" %zu", divisions);
  }
  printf("\n");
}

} // namespace

int main(int, char** arguments) {
  capacity = strtoull(arguments[1], nullptr, 10);
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  allocator->init(1);
  c10::cuda::detail::init_p2p_access_cache(1);
  record(allocator);
  std::map<long, void*> live;
  std::string command;
  while (std::cin >> command) {
    if (command == "a") {
      long key = 0;
      size_t size = 0, stream = 0;
      std::cin >> key >> size >> stream;
      try {
        live[key] = allocator->raw_alloc_with_stream(size, reinterpret_cast<cudaStream_t>(stream));
        printf("a %zu\n", reinterpret_cast<size_t>(live[key]));
      } catch (const c10::OutOfMemoryError&) {
        printf("o\n");
      }
    } else if (command == "f") {
      long key = 0;
      std::cin >> key;
      if (live.count(key) != 0) {
        allocator->raw_delete(live.at(key));
        live.erase(key);
      }
    } else if (command == "e") {
      allocator->emptyCache();
    } else if (command == "m") {
      double fraction = 1.0;
      std::cin >> fraction;
      allocator->setMemoryFraction(fraction, 0);
    } else if (command == "p") {
      allocator->resetPeakStats(0);
    } else if (command == "r") {
      record(allocator);
    } else {
      fprintf(stderr, "no such command: %s\n", command.c_str());
      return 2;
    }
    write_counters(allocator);
  }
  write_snapshot(allocator);
  fflush(stdout);
  _exit(0); // not through the destructors of libraries that look for a GPU
}
