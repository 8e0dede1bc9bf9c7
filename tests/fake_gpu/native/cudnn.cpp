// cuDNN's backend interface, which PyTorch's attention and convolutions use: descriptors that accept everything.
//
// Plans need no workspace here, which the real ones may.
#include "device.h"

#include <cudnn_backend.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

using namespace fake;

namespace {

struct Handle {
  cudaStream_t stream = nullptr;
};
Handle* of(cudnnHandle_t handle) { return reinterpret_cast<Handle*>(handle); }

struct Attribute {
  int64_t count;
  std::vector<char> bytes;
};
using Descriptor = std::map<int, Attribute>;

size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN: return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_HANDLE: return 8;
    default: return 4;
  }
}

}  // namespace

EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete of(handle);
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  of(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = of(handle)->stream;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT size_t cudnnGetVersion() { return CUDNN_VERSION; }
EXPORT size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
EXPORT cudnnStatus_t cudnnGetProperty(libraryPropertyType which, int* value) {
  *value = which == MAJOR_VERSION ? CUDNN_MAJOR : which == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status ? "an error of the fake cuDNN" : "CUDNN_STATUS_SUCCESS";
}
EXPORT void cudnnGetLastErrorString(char* text, size_t size) {
  if (size) *text = 0;
}

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t* descriptor) {
  *descriptor = reinterpret_cast<cudnnBackendDescriptor_t>(new Descriptor);
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete reinterpret_cast<Descriptor*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }
EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  Attribute& attribute = (*reinterpret_cast<Descriptor*>(handle))[name];
  auto* first = static_cast<const char*>(values);
  attribute.count = count;
  if (first) attribute.bytes.assign(first, first + count * bytes_of(type));
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count,
                                              void* values) {
  auto* descriptor = reinterpret_cast<Descriptor*>(handle);
  auto found = descriptor->find(name);
  if (found != descriptor->end()) {
    if (count) *count = found->second.count;
    if (values)
      memcpy(values, found->second.bytes.data(), std::min<size_t>(found->second.bytes.size(), wanted * bytes_of(type)));
    return CUDNN_STATUS_SUCCESS;
  }
  // What nobody has set: one heuristic result, an engine of number 0, a plan without a workspace; else nothing.
  bool has_one = name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX ||
                 name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE;
  if (count) *count = has_one;
  if (values && wanted > 0 && type != CUDNN_TYPE_BACKEND_DESCRIPTOR) memset(values, 0, bytes_of(type));
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
  constexpr double kPlanNs = 20000;
  return launch(of(handle)->stream, "cudnn_plan", kPlanNs) ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}
